#include "lib/text/chat/known_templates.hpp"

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

/// Hashes of the texts in tests/fixtures/chat/templates: two wordings of each, the makers' and the one with {%
/// generation %} that transformers needs to find answers, and what models on the Hub bring. Each was compared with
/// Jinja's text of conversations.
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
                            // With branches for tools and parts of contents, which are refused before they matter.
                            Known{0xed7f78b381060efb, 0x01559bfa504c74bd, ChatFormat::qwen2_5},  // Qwen2.5-*-Instruct
                            Known{0xa8fc72fb8f1a0758, 0x5a6b04ad509a0b2d, ChatFormat::qwen2},    // Qwen2.5-*
                            Known{0xb2db670945fc42d3, 0xf56d7ac2d3cf9975, ChatFormat::gemma3},   // gemma-3-*-it
                            Known{0x98bff630eccb50ee, 0xb8835db2a77979c1, ChatFormat::gemma3}};

std::string unified(std::string text) {
  for (auto at = text.find("\r\n"); at != std::string::npos; at = text.find("\r\n", at)) text.erase(at, 1);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

/// A template's text and the file it is from.
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

/// As transformers looks for it.
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
