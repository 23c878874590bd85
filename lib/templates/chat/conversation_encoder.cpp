#include "lib/templates/chat/conversation_encoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/templates/chat/preference.hpp"
#include "lib/templates/jinja/jinja_value.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

/// Roles that templates need not name.
constexpr std::array kRoles{"system", "developer", "user", "assistant", "tool"};

/// Anatolian hieroglyphs. One that a conversation does not have stands in its names of special tokens, which are plain
/// text, while a template writes them. A letter, so that no template strips it, and Python's repr() writes it as it is.
constexpr char32_t kFirstGuard = 0x14400, kLastGuard = 0x14646;

/// The character as JSON in ASCII writes it.
std::string escaped(char32_t guard) {
  const auto rest = static_cast<std::uint32_t>(guard) - 0x10000;
  return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
}

/// A token that begins before an answer and ends in it is a target.
std::vector<std::uint8_t> mask_of(const std::vector<TextRange>& parts, std::span<const TextRange> answers) {
  std::vector<std::uint8_t> mask;
  mask.reserve(parts.size());
  for (const auto& part : parts) {
    while (!answers.empty() && answers.front().end <= part.begin) answers = answers.subspan(1);
    mask.push_back(!answers.empty() && part.end > answers.front().begin ? 1 : 0);
  }
  return mask;
}

const std::string& text_member(const Json& record, const char* key) {
  const auto found = record.find(key);
  if (found == record.end()) throw FormatError("has no '" + std::string(key) + "'");
  if (found->is_string()) return found->get_ref<const std::string&>();
  throw FormatError("'" + std::string(key) + "' holds " +
                    (found->is_null()    ? "null"
                     : found->is_array() ? "a list (whole conversations are read from 'messages')"
                                         : found->type_name()) +
                    ", expected a string");
}

[[noreturn]] void refuse_answer(std::size_t message, const ChatTemplate& chat, const std::string& why) {
  throw FormatError(
      "message " + std::to_string(message + 1) + " is an answer whose place in the text is ambiguous: " + chat.title() +
          " " + why +
          ". Put {% generation %} and {% endgeneration %} around answers in a copy of the template and name "
          "that",
      Remedy::mark_answers);
}

/// \return the text, or nothing where the template refuses these messages
std::optional<std::string> try_render(const ChatTemplate& chat, const Conversation& conversation, std::size_t count,
                                      NextTurn next) {
  try {
    return chat.render(conversation, count, next).text;
  } catch (const FormatError&) {
    return {};
  }
}

/// Returns the text that {% generation %} encloses, of the messages that count.
std::vector<TextRange> marked_answers(const ChatTemplate& chat, const Conversation& conversation,
                                      std::vector<TextRange> marked) {
  std::vector<bool> counts;
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    if (conversation.messages[i]["role"] == "assistant") counts.push_back(conversation.is_answer[i]);
  }
  if (std::find(counts.begin(), counts.end(), false) == counts.end()) return marked;
  if (counts.size() != marked.size()) {
    throw FormatError("a message has \"weight\": 0, and " + chat.title() + " marks " + std::to_string(marked.size()) +
                      " answers where there are " + std::to_string(counts.size()) +
                      ": which of them it is, is unknown");
  }
  std::vector<TextRange> answers;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i]) answers.push_back(marked[i]);
  }
  return answers;
}

/// Removes the guards from a text. \param guard  0: there are none \return where they were
std::vector<TextRange> take_guards(JinjaText& text, char32_t guard) {
  std::vector<TextRange> names;
  if (guard == 0) return names;
  const std::array spellings{jinja::utf8_of({&guard, 1}), escaped(guard)};
  std::string plain;
  std::size_t begin = 0;
  const auto shift = [&](std::size_t at, std::size_t removed) {
    for (auto& range : text.marked) {
      if (range.begin > at) range.begin -= removed;
      if (range.end > at) range.end -= removed;
    }
  };
  while (true) {
    const std::array found{text.text.find(spellings[0], begin), text.text.find(spellings[1], begin)};
    const auto& spelling = spellings[found[1] < found[0] ? 1 : 0];
    const auto at = std::min(found[0], found[1]);
    if (at == std::string::npos) break;
    plain.append(text.text, begin, at - begin);
    shift(plain.size(), spelling.size());
    begin = at + spelling.size();
    const auto first = std::max<std::size_t>(plain.size(), 1) - 1;
    names.push_back({names.empty() ? first : std::max(first, names.back().end), plain.size() + 1});
  }
  plain.append(text.text, begin);
  text.text = std::move(plain);
  return names;
}

/// A letter that the conversation has in neither spelling.
char32_t free_guard(const Conversation& conversation) {
  const auto texts = conversation.messages.dump() + conversation.variables.dump();
  for (char32_t guard = kFirstGuard; guard <= kLastGuard; ++guard) {
    const auto low = escaped(guard).substr(7);  // without backslashes, which dump() doubles
    if (texts.find(jinja::utf8_of({&guard, 1})) == texts.npos && texts.find(low) == texts.npos) return guard;
  }
  throw FormatError("has all Anatolian hieroglyphs, of which a plain mark needs one");
}

/// True where the loss counts something after the answers: the mark that ends a turn. Also where the template refuses
/// the conversations that are tried.
bool learns_turn_end(const ChatTemplate& chat) {
  const std::string answer = "ANSWER";
  const Json turn{Json{{"role", "user"}, {"content", "QUESTION"}}, Json{{"role", "assistant"}, {"content", answer}}};
  for (const std::size_t turns : {2, 1}) {
    Conversation conversation;
    conversation.messages = Json::array();
    for (std::size_t i = 0; i < turns; ++i)
      conversation.messages.insert(conversation.messages.end(), turn.begin(), turn.end());
    for (std::size_t i = 0; i < 2 * turns; ++i) conversation.is_answer.push_back(i % 2 == 1);
    try {
      const auto whole = chat.render(conversation, 2 * turns, NextTurn::none);
      const auto answers = find_answers(chat, conversation, whole);
      return answers.empty() || std::any_of(answers.begin(), answers.end(), [&](const TextRange& range) {
               const auto text = std::string_view(whole.text).substr(range.begin, range.end - range.begin);
               const auto at = text.rfind(answer);
               return at == text.npos || !jinja::strip(text.substr(at + answer.size())).empty();
             });
    } catch (const FormatError&) {
    }
  }
  return true;
}

}  // namespace

std::vector<TextRange> find_answers(const ChatTemplate& chat, const Conversation& conversation,
                                    const JinjaText& whole) {
  if (chat.marks_answers()) return marked_answers(chat, conversation, whole.marked);
  std::vector<TextRange> answers;
  for (std::size_t i = 0; i < conversation.is_answer.size(); ++i) {
    if (!conversation.is_answer[i]) continue;
    const auto before = try_render(chat, conversation, i, NextTurn::assistant);
    const auto with = try_render(chat, conversation, i + 1, NextTurn::none);
    if (!before || !with) refuse_answer(i, chat, "refuses the messages up to there");
    if (!with->starts_with(*before)) refuse_answer(i, chat, "does not begin an answer as it begins the next one");
    if (!whole.text.starts_with(*with)) refuse_answer(i, chat, "changes it when other messages follow");
    answers.push_back({before->size(), with->size()});
  }
  return answers;
}

ConversationEncoder::ConversationEncoder(const Tokenizer& tokenizer, ConversationRules rules)
    : tokenizer_(tokenizer), rules_(std::move(rules)) {
  if (!rules_.chat) return;
  turn_end_ = find_turn_end(*rules_.chat);
  if (const auto* with_tools = rules_.chat->with_tools()) tools_turn_end_ = find_turn_end(*with_tools);
}

bool ConversationEncoder::learns_turn_ends() const {
  if (!rules_.chat || rules_.train_on == TrainOn::all) return true;
  const auto* with_tools = rules_.chat->with_tools();
  return learns_turn_end(*rules_.chat) && (with_tools == nullptr || learns_turn_end(*with_tools));
}

/// Finds the token that the template writes after an answer.
ConversationEncoder::TurnEnd ConversationEncoder::find_turn_end(const ChatTemplate& chat) const {
  const std::string answer = "ANSWER";
  Conversation conversation;
  conversation.messages =
      Json::array({Json{{"role", "user"}, {"content", "QUESTION"}}, Json{{"role", "assistant"}, {"content", answer}}});
  TurnEnd turn_end;
  const auto text = try_render(chat, conversation, 2, NextTurn::none);
  const auto found = text ? text->rfind(answer) : std::string::npos;
  if (found == std::string::npos) return turn_end;
  const auto end = found + answer.size();
  const auto encoded = tokenizer_.encode_marked(*text, {});
  for (std::size_t i = 0; i < encoded.ids.size(); ++i) {
    const auto [first, last] = encoded.parts[i];
    if (first < end || turn_end.id) continue;
    const auto name = text->substr(first, last - first);
    if (jinja::strip(name).empty() || tokenizer_.named_id(name) != encoded.ids[i]) continue;
    turn_end = {encoded.ids[i], name};
  }
  const auto mark = jinja::strip(std::string_view(*text).substr(end));
  const auto length = mark.find('>');
  const bool is_mark = mark.starts_with(is_chat_template_name(chat.name()) ? "<" : "<|") && length != mark.npos;
  if (turn_end.id || !is_mark) return turn_end;
  throw FormatError(chat.title() + " writes the mark '" + std::string(mark.substr(0, length + 1)) +
                        "' behind an answer, for which the tokenizer has no token (" + tokenizer_.description() + ")",
                    Remedy::other_template);
}

/// The conversation as the template gets it.
/// \throws FormatError naming a message that no template can have a place for
ConversationEncoder::Prepared ConversationEncoder::prepared(Conversation conversation) const {
  const auto& chat = rules_.chat->for_conversation(conversation);
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    auto& message = conversation.messages[i];
    const auto& role = message["role"].get_ref<const std::string&>();
    const auto where = "message " + std::to_string(i + 1);
    if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end() && !chat.mentions(role)) {
      throw FormatError(where + " has the role '" + role +
                        "', expected system, user, assistant, tool, or one that the chat template names");
    }
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array() || chat.reads_parts()) continue;
    if (content->size() != 1) {
      throw FormatError(where + " has a content of " + std::to_string(content->size()) + " parts, and " + chat.title() +
                        " reads strings: join them as the model is to read them");
    }
    message["content"] = Json(content->front()["text"]);
  }
  if (rules_.marks == MarksInTexts::tokens) return {std::move(conversation), 0};
  const auto guard = free_guard(conversation);
  conversation.messages = guarded(conversation.messages, guard);
  if (conversation.variables.is_object()) conversation.variables = guarded(conversation.variables, guard);
  return {std::move(conversation), guard};
}

/// The text with a guard in each name of a special token, so that the text's place after rendering is known.
std::string ConversationEncoder::guarded(const std::string& text, char32_t guard) const {
  const auto encoded = tokenizer_.encode_marked(text, {});
  std::string out;
  std::size_t done = 0;
  for (std::size_t i = 0; i < encoded.ids.size(); ++i) {
    const auto [first, last] = encoded.parts[i];
    const auto name = jinja::strip(std::string_view(text).substr(first, last - first));
    if (name.empty() || tokenizer_.named_id(name) != encoded.ids[i]) continue;
    auto at = to_index(name.data() - text.data()) + 1;
    while (at < text.size() && (static_cast<std::uint8_t>(text[at]) & 0xc0) == 0x80) ++at;
    if (at < done) continue;
    out.append(text, done, at - done);
    out += jinja::utf8_of({&guard, 1});
    done = at;
  }
  return out.append(text, done);
}

nlohmann::ordered_json ConversationEncoder::guarded(const nlohmann::ordered_json& value, char32_t guard) const {
  if (value.is_string()) return guarded(value.get_ref<const std::string&>(), guard);
  if (!value.is_structured()) return value;
  auto copy = value;
  for (auto& item : copy) item = guarded(item, guard);
  return copy;
}

/// Refuses what the template leaves out, because the model would learn another conversation.
void ConversationEncoder::check_is_said(const Conversation& conversation, const std::string& text) const {
  const auto& chat = rules_.chat->for_conversation(conversation);
  const auto refuse_if_same = [&](const Conversation& without, const std::string& what) {
    if (try_render(chat, without, without.messages.size(), NextTurn::none) != text) return;
    throw FormatError(what + ", which " + chat.title() + " does not write; leave such conversations out");
  };
  if (says_something(conversation.variables["tools"]) && !chat.mentions("tools")) {
    auto without = conversation;
    without.variables["tools"] = nullptr;
    refuse_if_same(without, "has 'tools'");
  }
  const auto mentions_one = [&](const auto& keys) {
    return std::any_of(keys.begin(), keys.end(), [&](const auto* key) { return chat.mentions(key); });
  };
  constexpr std::array<std::array<const char*, 3>, 5> kSaid{{{"reasoning", "thinking", "reasoning_content"},
                                                             {"tool_calls", "tool_calls", "tool_calls"},
                                                             {"function_call", "function_call", "function_call"},
                                                             {"tools", "tools", "tools"},
                                                             {"refusal", "refusal", "refusal"}}};
  for (const auto& keys : kSaid) {
    for (std::size_t i = 0; i < conversation.messages.size() && !mentions_one(keys); ++i) {
      const auto& message = conversation.messages[i];
      const auto* key = message.contains(keys.front()) ? keys.front() : keys.back();
      if (!message.contains(key) || !says_something(message[key])) continue;
      auto without = conversation;
      for (const auto* one : keys) without.messages[i].erase(one);
      refuse_if_same(without, "message " + std::to_string(i + 1) + " has '" + key + "'");
    }
  }
}

MaskedIds ConversationEncoder::encode_messages(const nlohmann::ordered_json& record, const std::string& field) const {
  const auto conversation = prepared(read_conversation(record, field));
  const auto& chat = rules_.chat->for_conversation(conversation);
  auto whole = chat.render(conversation, conversation.messages.size(), NextTurn::none);
  check_is_said(conversation, whole.text);
  whole.marked = rules_.train_on == TrainOn::all ? std::vector<TextRange>() : find_answers(chat, conversation, whole);
  const auto plain = take_guards(whole, conversation.guard);
  const auto& turn_end = &chat == rules_.chat.get() ? turn_end_.text : tools_turn_end_.text;
  if (!turn_end.empty() && !chat.marks_answers()) {
    for (auto& [begin, end] : whole.marked) {
      const auto rest = std::string_view(whole.text).substr(begin, end - begin);
      const auto mark = rest.rfind(turn_end);
      if (mark == rest.npos) continue;
      const auto behind = mark + turn_end.size();
      if (jinja::strip(rest.substr(behind)).empty()) end = begin + behind;
    }
  }
  auto encoded = tokenizer_.encode_marked(whole.text, plain);
  auto mask = mask_of(encoded.parts, whole.marked);
  return {std::move(encoded.ids), std::move(mask)};
}

std::vector<std::int32_t> ConversationEncoder::encode_prompt(const nlohmann::ordered_json& messages) const {
  Conversation conversation;
  conversation.messages = messages;
  return prompt_ids(std::move(conversation));
}

std::vector<std::int32_t> ConversationEncoder::encode_prompt(const Json& record, const std::string& field) const {
  auto conversation = read_conversation(record, field);
  const auto& messages = conversation.messages;
  if (messages.empty()) throw FormatError("has no message to answer");
  if (messages.back()["role"] == "assistant")
    throw FormatError("ends with an answer, and answers are what is written here: leave the last message out");
  check_is_said(conversation,
                rules_.chat->for_conversation(conversation).render(conversation, messages.size(), NextTurn::none).text);
  return prompt_ids(std::move(conversation));
}

std::vector<std::int32_t> ConversationEncoder::prompt_ids(Conversation conversation) const {
  const auto ready = prepared(std::move(conversation));
  auto text = rules_.chat->for_conversation(ready).render(ready, ready.messages.size(), NextTurn::assistant);
  const auto plain = take_guards(text, ready.guard);
  return tokenizer_.encode_marked(text.text, plain).ids;
}

/// Encodes a prompt and a completion that are messages. Source: tokenize_fn() of SFTTrainer, TRL 1.16
MaskedIds ConversationEncoder::encode_message_pair(const nlohmann::ordered_json& record) const {
  if (!rules_.chat) throw FormatError("'prompt' holds a list, and in the first sample of the file a string");
  const auto conversation = prepared(read_message_pair(record));
  const auto& chat = rules_.chat->for_conversation(conversation);
  const auto& counts = conversation.is_answer;
  const auto prompt_size = static_cast<std::size_t>(std::find(counts.begin(), counts.end(), true) - counts.begin());
  auto whole = chat.render(conversation, conversation.messages.size(), NextTurn::none);
  check_is_said(conversation, whole.text);
  const auto prompt = chat.render(conversation, prompt_size, NextTurn::assistant).text;
  if (!whole.text.starts_with(prompt) && rules_.train_on == TrainOn::answers)
    refuse_answer(prompt_size, chat, "does not begin a completion as it ends a prompt");
  whole.marked = {{std::min(prompt.size(), whole.text.size()), whole.text.size()}};
  auto plain = take_guards(whole, conversation.guard);
  auto encoded = tokenizer_.encode_marked(whole.text, plain);
  const auto prompt_end = whole.marked.front().begin;
  std::erase_if(plain, [&](const TextRange& range) { return range.begin >= prompt_end; });
  const auto alone = tokenizer_.encode_marked(whole.text.substr(0, prompt_end), plain).ids;
  const auto shared = std::mismatch(alone.begin(), alone.end(), encoded.ids.begin(), encoded.ids.end()).first;
  std::vector<std::uint8_t> mask(encoded.ids.size(), 1);
  std::fill_n(mask.begin(), shared - alone.begin(), std::uint8_t{0});
  return {std::move(encoded.ids), std::move(mask)};
}

std::vector<std::int32_t> ConversationEncoder::encode_text(const std::string& text) const {
  const TextRange all{0, text.size()};
  const bool is_plain = rules_.marks == MarksInTexts::plain_text;
  return tokenizer_.document_marks().around(tokenizer_.encode_marked(text, std::span(&all, is_plain ? 1 : 0)).ids);
}

MaskedIds ConversationEncoder::encode_pair(const nlohmann::ordered_json& record) const {
  return encode_pair(record, PromptEnd::as_many_as_alone);
}

MaskedIds ConversationEncoder::encode_answer(const nlohmann::ordered_json& record) const {
  return encode_pair(record, PromptEnd::where_they_part);
}

std::array<MaskedIds, 2> ConversationEncoder::encode_sides(const nlohmann::ordered_json& record) const {
  if (is_message_preference(record) && !rules_.chat)
    throw FormatError("holds messages, and the first sample of the file strings");
  const auto sides = read_preference(record);
  return {encode_answer(sides.chosen), encode_answer(sides.rejected)};
}

std::array<MaskedIds, 2> ConversationEncoder::encode_preference(const nlohmann::ordered_json& record) const {
  auto encoded = encode_sides(record);
  std::ptrdiff_t begin = std::numeric_limits<std::ptrdiff_t>::max();
  for (const auto& [ids, mask] : encoded)
    begin = std::min(begin, std::find(mask.begin(), mask.end(), std::uint8_t{1}) - mask.begin());
  for (auto& [ids, mask] : encoded) std::fill(mask.begin() + begin, mask.end(), std::uint8_t{1});
  return encoded;
}

MaskedIds ConversationEncoder::encode_pair(const nlohmann::ordered_json& record, PromptEnd prompt_end) const {
  if (is_message_pair(record)) return encode_message_pair(record);
  refuse_unsaid(record);
  for (const auto* key : {"tools", "system"}) {
    if (const auto found = record.find(key); found != record.end() && says_something(*found))
      throw FormatError("has '" + std::string(key) + "', which is for conversations; leave such samples out");
  }
  const auto& prompt = text_member(record, "prompt");
  const auto& completion = text_member(record, "completion");
  const auto end = tokenizer_.eos_id();
  if (!end) {
    throw FormatError("a completion needs the tokenizer's end mark, and it names none (" + tokenizer_.description() +
                      "): set eos_token in tokenizer_config.json");
  }
  const bool plain = rules_.marks == MarksInTexts::plain_text;
  const auto encode = [&](const std::string& text) {
    const TextRange all{0, text.size()};
    return tokenizer_.encode_marked(text, std::span(&all, plain ? 1 : 0)).ids;
  };
  MaskedIds sample{tokenizer_.document_marks().before, {}};
  const auto prompt_ids = encode(prompt);
  auto rest = rules_.pairs == PairEncoding::joint ? encode(prompt + completion) : encode(completion);
  if (rules_.pairs == PairEncoding::separate) sample.ids.insert(sample.ids.end(), prompt_ids.begin(), prompt_ids.end());
  auto end_of_prompt = sample.ids.size();
  if (rules_.pairs == PairEncoding::joint && prompt_end == PromptEnd::as_many_as_alone)
    end_of_prompt += std::min(prompt_ids.size(), rest.size());
  if (rules_.pairs == PairEncoding::joint && prompt_end == PromptEnd::where_they_part)
    end_of_prompt += static_cast<std::size_t>(
        std::mismatch(prompt_ids.begin(), prompt_ids.end(), rest.begin(), rest.end()).first - prompt_ids.begin());
  // A completion that ends with the name of the mark already has the mark; an empty one has it where the prompt has.
  if (plain || completion.empty() || rest.empty() || rest.back() != *end) rest.push_back(*end);
  sample.ids.insert(sample.ids.end(), rest.begin(), rest.end());
  sample.mask.assign(sample.ids.size(), 1);
  std::fill_n(sample.mask.begin(), std::min(end_of_prompt, sample.ids.size() - 1), std::uint8_t{0});
  return sample;
}

}  // namespace fsdp
