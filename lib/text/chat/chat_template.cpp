#include "lib/text/chat/chat_template.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/text_format.hpp"
#include "lib/text/tokenizer/json_file.hpp"
#include "lib/text/tokenizer/open_tokenizer.hpp"
#include "lib/text/tokenizer/tokenizer_config.hpp"

namespace fsdp {
namespace {

/// Characters, in UTF-8, for which Python's str.isspace() holds: Unicode's white space and ASCII's four separators.
constexpr std::array<std::string_view, 29> kSpaces{
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

struct Entry {
  ChatFormat format;
  const char* name;
};
constexpr std::array<Entry, 8> kFormats{{{ChatFormat::chatml, "chatml"},
                                         {ChatFormat::qwen2, "qwen2"},
                                         {ChatFormat::qwen2_5, "qwen2.5"},
                                         {ChatFormat::llama3, "llama3"},
                                         {ChatFormat::llama2, "llama2"},
                                         {ChatFormat::mistral, "mistral"},
                                         {ChatFormat::gemma, "gemma"},
                                         {ChatFormat::gemma3, "gemma3"}}};

[[noreturn]] void refuse(std::size_t index, const std::string& problem) {
  throw FormatError("message " + std::to_string(index + 1) + " " + problem);
}

/// A text under construction, with the ranges of contents and answers.
class Writer {
 public:
  explicit Writer(const ChatTemplate& chat) : chat_(chat) {}

  RenderedChat write(const std::vector<ChatMessage>& messages, NextTurn next) {
    check_roles(messages);
    switch (chat_.format) {
      case ChatFormat::chatml:
      case ChatFormat::qwen2:
      case ChatFormat::qwen2_5:
        write_chatml(messages);
        break;
      case ChatFormat::llama3:
        write_llama3(messages);
        break;
      case ChatFormat::llama2:
      case ChatFormat::mistral:
        write_instructions(messages);
        break;
      case ChatFormat::gemma:
      case ChatFormat::gemma3:
        write_gemma(messages);
        break;
    }
    if (next == NextTurn::assistant) add(answer_header());
    return std::move(chat_text_);
  }

 private:
  /// Checks the order of roles: a system message may be first; then user and assistant alternate, where the template
  /// requires it.
  void check_roles(const std::vector<ChatMessage>& messages) const {
    const bool alternate = chat_.format >= ChatFormat::llama2;
    const bool takes_system = chat_.format != ChatFormat::mistral && chat_.format != ChatFormat::gemma;
    const std::size_t first = !messages.empty() && messages.front().role == "system" ? 1 : 0;
    const auto quoted = [&] { return "the chat template '" + std::string(name_of(chat_.format)) + "'"; };
    if (first == 1 && !takes_system) refuse(0, "is the system's, for which " + quoted() + " has no place");
    for (std::size_t i = first; i < messages.size(); ++i) {
      const auto& role = messages[i].role;
      if (role != "system" && role != "user" && role != "assistant")
        refuse(i, "has the role '" + role + "', expected system, user or assistant");
      const char* expected = (i - first) % 2 == 0 ? "user" : "assistant";
      if (alternate && role != expected) {
        refuse(i, "has the role '" + role + "' where " + quoted() + " expects '" + expected +
                      "': user and assistant take turns" + (takes_system ? ", after at most one system message" : ""));
      }
    }
  }

  void write_chatml(const std::vector<ChatMessage>& messages) {
    if (chat_.format != ChatFormat::chatml && messages.front().role != "system") {
      const char* author = chat_.format == ChatFormat::qwen2 ? "" : "You are Qwen, created by Alibaba Cloud. ";
      add("<|im_start|>system\n" + std::string(author) + "You are a helpful assistant.<|im_end|>\n");
    }
    for (const auto& message : messages) {
      add("<|im_start|>" + message.role + "\n");
      const auto begin = here();
      add_content(message.content);
      add("<|im_end|>");
      end_turn(message, begin);
      add("\n");
    }
  }

  void write_llama3(const std::vector<ChatMessage>& messages) {
    add(chat_.bos);
    for (const auto& message : messages) {
      add("<|start_header_id|>" + message.role + "<|end_header_id|>\n\n");
      const auto begin = here();
      add_content(python_strip(message.content));
      add("<|eot_id|>");
      end_turn(message, begin);
    }
  }

  /// Renders Llama 2 and Mistral. Llama 2 begins each pair of turns with a mark of its own and trims contents; Mistral
  /// does neither.
  void write_instructions(const std::vector<ChatMessage>& messages) {
    const bool llama2 = chat_.format == ChatFormat::llama2;
    const bool system = messages.front().role == "system";
    if (!llama2) add(chat_.bos);
    for (std::size_t i = system ? 1 : 0; i < messages.size(); ++i) {
      const auto& message = messages[i];
      if (message.role == "user") {
        add((llama2 ? chat_.bos : "") + "[INST] ");
        if (system && i == 1) {
          add_user_with_system(messages.front().content, message.content);
        } else {
          add_content(llama2 ? python_strip(message.content) : message.content);
        }
        add(" [/INST]");
        continue;
      }
      const auto begin = here();
      if (llama2) add(" ");
      add_content(llama2 ? python_strip(message.content) : message.content);
      add((llama2 ? " " : "") + chat_.eos);
      end_turn(message, begin);
    }
  }

  /// The template trims system and user message together. That text begins with the mark, so only its end is trimmed.
  void add_user_with_system(const std::string& system, const std::string& user) {
    add("<<SYS>>\n");
    add_content(system);
    const auto trimmed = python_strip(user);
    if (trimmed.empty()) return add("\n<</SYS>>");
    add("\n<</SYS>>\n\n");
    add_content(
        std::string_view(user).substr(0, static_cast<std::size_t>(trimmed.data() - user.data()) + trimmed.size()));
  }

  void write_gemma(const std::vector<ChatMessage>& messages) {
    add(chat_.bos);
    const bool system = messages.front().role == "system";
    for (std::size_t i = system ? 1 : 0; i < messages.size(); ++i) {
      const auto& message = messages[i];
      add("<start_of_turn>" + std::string(message.role == "assistant" ? "model" : "user") + "\n");
      const auto begin = here();
      if (system && i == 1) {
        add_content(messages.front().content);
        add("\n\n");
      }
      add_content(python_strip(message.content));
      add("<end_of_turn>");
      end_turn(message, begin);
      add("\n");
    }
  }

  const char* answer_header() const {
    switch (chat_.format) {
      case ChatFormat::llama3:
        return "<|start_header_id|>assistant<|end_header_id|>\n\n";
      case ChatFormat::llama2:
      case ChatFormat::mistral:
        return "";
      case ChatFormat::gemma:
      case ChatFormat::gemma3:
        return "<start_of_turn>model\n";
      default:
        return "<|im_start|>assistant\n";
    }
  }

  std::size_t here() const { return chat_text_.text.size(); }
  void add(std::string_view text) { chat_text_.text += text; }
  void add_content(std::string_view text) {
    if (text.empty()) return;
    chat_text_.contents.push_back({here(), here() + text.size()});
    add(text);
  }
  void end_turn(const ChatMessage& message, std::size_t begin) {
    if (message.role == "assistant" && message.counts) chat_text_.answers.push_back({begin, here()});
  }

  const ChatTemplate& chat_;
  RenderedChat chat_text_;
};

constexpr std::uint64_t kMostTemplateBytes = 1 << 20;

__extension__ using Hash = unsigned __int128;

constexpr Hash hash_of(std::uint64_t high, std::uint64_t low) { return static_cast<Hash>(high) << 64 | low; }

Hash fnv1a(std::string_view text) {
  constexpr auto kPrime = hash_of(0x0000000001000000, 0x000000000000013b);
  auto hash = hash_of(0x6c62272e07bb0142, 0x62b821756295c58d);
  for (const char byte : text) hash = (hash ^ static_cast<std::uint8_t>(byte)) * kPrime;
  return hash;
}

struct Known {
  std::uint64_t high, low;
  ChatFormat format;
};

/// Hashes of the texts in tests/fixtures/chat/templates: for each format the makers' wording, the wording with {%
/// generation %} that transformers needs to find answers, and variants of models on the Hub. The output of each was
/// compared with Jinja's.
constexpr std::array kKnown{Known{0x6c6ed311f79125b3, 0x9c0523f554f57f78, ChatFormat::chatml},
                            Known{0x47470e61f10e0b65, 0xfd9ca16bf7870e5e, ChatFormat::chatml},
                            Known{0x0584c0107ad930f5, 0x84cb9b946cb40c35, ChatFormat::qwen2},
                            Known{0x3ba43c7b1be6bd9c, 0x13ce9b12e2f05be5, ChatFormat::qwen2},
                            Known{0x7b53257b858b9427, 0xeff1989597aa11b8, ChatFormat::qwen2_5},
                            Known{0xede4abd05df4a0b2, 0x17f0fa3fa450ad97, ChatFormat::qwen2_5},
                            Known{0x526a59e111c4af23, 0x0437e5a3ae2faeae, ChatFormat::llama3},
                            Known{0xbc504a3a0d2f13b9, 0x0bff4c86545a9d88, ChatFormat::llama3},
                            Known{0xdb5ab49cd7ab2f24, 0x0436fec8b3b69a3d, ChatFormat::llama2},
                            Known{0xcb2d5fdae1d02481, 0x1e81091873533410, ChatFormat::llama2},
                            Known{0x9b177cf046d40798, 0x1405ae33a9cdf9e5, ChatFormat::mistral},
                            Known{0xdd032e84e57ce800, 0xdcf07d03d55a4a46, ChatFormat::mistral},
                            Known{0x1eab80e6ba0de4cf, 0x4c1a7d17ce11bbc3, ChatFormat::gemma},
                            Known{0x210d705c77c502c8, 0x01538627ce751d22, ChatFormat::gemma},
                            Known{0xb3cd94ac484df6a5, 0x84d36a27b9600fa0, ChatFormat::gemma3},
                            Known{0x126d2bc6cecfbefe, 0xa1734645b13d5915, ChatFormat::gemma3},
                            // Templates with branches for tools and parts of contents; such messages are refused
                            // before.
                            Known{0xed7f78b381060efb, 0x01559bfa504c74bd, ChatFormat::qwen2_5},  // Qwen2.5-*-Instruct
                            Known{0xa8fc72fb8f1a0758, 0x5a6b04ad509a0b2d, ChatFormat::qwen2},    // Qwen2.5-*
                            Known{0xb2db670945fc42d3, 0xf56d7ac2d3cf9975, ChatFormat::gemma3},   // gemma-3-*-it
                            Known{0x98bff630eccb50ee, 0xb8835db2a77979c1, ChatFormat::gemma3}};

std::string unified(std::string text) {
  for (auto at = text.find("\r\n"); at != std::string::npos; at = text.find("\r\n", at)) text.erase(at, 1);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

/// Text of a template and its file.
struct Source {
  std::string text;
  std::filesystem::path file;
};

/// chat_template of tokenizer_config.json: a text, or several by name.
std::optional<std::string> template_in(const std::filesystem::path& file) {
  const auto json = read_json_object(file);
  const auto value = JsonValue(json, file.string()).get("chat_template");
  if (value.is_null()) return {};
  if (value.is_string()) return value.string();
  for (const auto& one : value.elements()) {
    if (one.at("name").string() == "default") return one.at("template").string();
  }
  value.fail("has several templates and none that is called default");
}

/// Looks for a template in the order of transformers.
std::optional<Source> template_of(const std::filesystem::path& directory) {
  const auto jinja = directory / "chat_template.jinja", config = directory / "tokenizer_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(jinja, ignored)) return Source{read_text_file(jinja, kMostTemplateBytes), jinja};
  if (!std::filesystem::exists(config, ignored)) return {};
  const auto text = template_in(config);
  return text ? std::optional(Source{*text, config}) : std::nullopt;
}

Source read_asked(const std::string& asked) {
  const std::filesystem::path path = asked;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    if (auto found = template_of(path)) return *found;
    throw FormatError(asked + ": has no chat_template.jinja, and no chat_template in tokenizer_config.json");
  }
  if (!std::filesystem::exists(path, ignored)) {
    throw UsageError("--chat-template is '" + asked + "', which is neither a file nor one of " + chat_format_names());
  }
  if (path.extension() != ".json") return {read_text_file(path, kMostTemplateBytes), path};
  if (const auto text = template_in(path)) return {*text, path};
  throw FormatError(asked + ": has no chat_template");
}

ChatFormat recognise(const Source& source) {
  if (const auto format = recognise_template(source.text)) return *format;
  constexpr std::size_t most = 60;
  auto start = unified(source.text);
  if (start.size() > most) start = start.substr(0, most) + "...";
  std::replace(start.begin(), start.end(), '\n', ' ');
  throw FormatError(source.file.string() + ": its chat template, which begins with '" + printable(start) +
                    "', is none of those that are known (" + chat_format_names() +
                    "); where one of these writes the same text, name it with --chat-template");
}

ChatFormat choose_format(const std::string& asked, const std::string& tokenizer) {
  if (const auto format = chat_format(asked)) return *format;
  if (!asked.empty() && asked != "auto") return recognise(read_asked(asked));
  const auto own = tokenizer == kBuiltInTokenizer ? std::nullopt : template_of(tokenizer);
  if (own) return recognise(*own);
  throw UsageError("the tokenizer (" + tokenizer + ") has no chat template of its own" +
                   (tokenizer == kBuiltInTokenizer
                        ? ": did you forget --model (of fsdp-download tokens --tokenizer DIR)? Otherwise"
                        : ";") +
                   " name one with --chat-template: " + chat_format_names() + ", or a file");
}

}  // namespace

std::string_view python_strip(std::string_view text) {
  const auto at_start = [&](std::string_view space) { return text.starts_with(space); };
  const auto at_end = [&](std::string_view space) { return text.ends_with(space); };
  for (auto found = kSpaces.begin(); (found = std::find_if(kSpaces.begin(), kSpaces.end(), at_start)) != kSpaces.end();)
    text.remove_prefix(found->size());
  for (auto found = kSpaces.begin(); (found = std::find_if(kSpaces.begin(), kSpaces.end(), at_end)) != kSpaces.end();)
    text.remove_suffix(found->size());
  return text;
}

const char* name_of(ChatFormat format) {
  for (const auto& entry : kFormats) {
    if (entry.format == format) return entry.name;
  }
  return "";
}

std::optional<ChatFormat> chat_format(std::string_view name) {
  for (const auto& entry : kFormats) {
    if (entry.name == name) return entry.format;
  }
  return {};
}

std::string chat_format_names() {
  std::string names;
  for (const auto& entry : kFormats) names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

std::vector<std::string> marks_of(const ChatTemplate& chat) {
  switch (chat.format) {
    case ChatFormat::llama3:
      return {chat.bos, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
    case ChatFormat::llama2:
    case ChatFormat::mistral:
      return {chat.bos, chat.eos};
    case ChatFormat::gemma:
    case ChatFormat::gemma3:
      return {chat.bos, "<start_of_turn>", "<end_of_turn>"};
    default:
      return {"<|im_start|>", "<|im_end|>"};
  }
}

std::string end_mark_of(const ChatTemplate& chat) {
  switch (chat.format) {
    case ChatFormat::llama3:
      return "<|eot_id|>";
    case ChatFormat::llama2:
    case ChatFormat::mistral:
      return chat.eos;
    case ChatFormat::gemma:
    case ChatFormat::gemma3:
      return "<end_of_turn>";
    default:
      return "<|im_end|>";
  }
}

RenderedChat render_chat(const ChatTemplate& chat, const std::vector<ChatMessage>& messages, NextTurn next) {
  return Writer(chat).write(messages, next);
}

std::optional<ChatFormat> recognise_template(std::string_view text) {
  const auto hash = fnv1a(unified(std::string(text)));
  for (const auto& known : kKnown) {
    if (hash_of(known.high, known.low) == hash) return known.format;
  }
  return {};
}

ChatTemplate find_chat_template(const std::string& asked, const std::string& tokenizer) {
  ChatTemplate chat{choose_format(asked, tokenizer), {}, {}};
  if (tokenizer != kBuiltInTokenizer) {
    const auto config = read_tokenizer_config(tokenizer);
    chat.bos = config.bos_token.value_or("");
    chat.eos = config.eos_token.value_or("");
  }
  const bool gemma = chat.format == ChatFormat::gemma || chat.format == ChatFormat::gemma3;
  if (chat.bos.empty()) chat.bos = chat.format == ChatFormat::llama3 ? "<|begin_of_text|>" : gemma ? "<bos>" : "<s>";
  if (chat.eos.empty()) chat.eos = "</s>";
  return chat;
}

}  // namespace fsdp
