#include "lib/text/chat/conversation_encoder.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "lib/base/error.hpp"

namespace fsdp {
namespace {

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

const std::string& text_member(const nlohmann::json& record, const char* key) {
  const auto found = record.find(key);
  if (found == record.end()) throw FormatError("has no '" + std::string(key) + "'");
  if (found->is_string()) return found->get_ref<const std::string&>();
  throw FormatError("'" + std::string(key) + "' holds " +
                    (found->is_null()    ? "null"
                     : found->is_array() ? "a list (whole conversations are read from 'messages')"
                                         : found->type_name()) +
                    ", expected a string");
}

}  // namespace

ConversationEncoder::ConversationEncoder(const Tokenizer& tokenizer, ConversationRules rules)
    : tokenizer_(tokenizer), rules_(std::move(rules)) {
  if (!rules_.chat) return;
  for (const auto& mark : marks_of(*rules_.chat)) {
    if (tokenizer.named_id(mark)) continue;
    throw FormatError("the chat template '" + std::string(name_of(rules_.chat->format)) + "' writes the mark '" + mark +
                      "', for which the tokenizer has no token (" + tokenizer.description() +
                      "); choose another with --chat-template, or add the token to tokenizer and model");
  }
}

MaskedIds ConversationEncoder::encode_messages(const nlohmann::json& record, const std::string& field) const {
  const auto found = record.find(field);
  if (found == record.end()) throw FormatError("has no '" + field + "'");
  refuse_unsaid(record);
  const auto chat = render_chat(rules_.chat.value(), read_messages(*found, field));
  const auto plain = rules_.marks == MarksInTexts::plain_text ? chat.contents : std::vector<TextRange>();
  auto encoded = tokenizer_.encode_marked(chat.text, plain);
  auto mask = mask_of(encoded.parts, chat.answers);
  return {std::move(encoded.ids), std::move(mask)};
}

std::vector<std::int32_t> ConversationEncoder::encode_prompt(const std::vector<ChatMessage>& messages) const {
  const auto chat = render_chat(rules_.chat.value(), messages, NextTurn::assistant);
  const auto plain = rules_.marks == MarksInTexts::plain_text ? chat.contents : std::vector<TextRange>();
  return tokenizer_.encode_marked(chat.text, plain).ids;
}

std::int32_t ConversationEncoder::turn_end() const {
  return tokenizer_.named_id(end_mark_of(rules_.chat.value())).value();
}

MaskedIds ConversationEncoder::encode_pair(const nlohmann::json& record) const {
  refuse_unsaid(record);
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
  const std::size_t prompt_end = rules_.pairs == PairEncoding::separate
                                     ? sample.ids.size()
                                     : sample.ids.size() + std::min(prompt_ids.size(), rest.size());
  // A completion that ends with the name of the mark already has the mark.
  if (plain || rest.empty() || rest.back() != *end) rest.push_back(*end);
  sample.ids.insert(sample.ids.end(), rest.begin(), rest.end());
  sample.mask.assign(sample.ids.size(), 1);
  std::fill_n(sample.mask.begin(), std::min(prompt_end, sample.ids.size() - 1), std::uint8_t{0});
  return sample;
}

}  // namespace fsdp
