#pragma once
// The chat templates that lie beside a vocabulary. Source: PreTrainedTokenizerBase of transformers 5.23
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fsdp {

inline constexpr std::uint64_t kMostTemplateBytes = 1 << 20;

/// "default" is for all conversations, "tool_use" for those with tools; others are for users to name.
struct NamedTemplate {
  std::string name;
  std::string text;
  std::filesystem::path file;
};

/// chat_template.jinja, which is "default", and *.jinja in additional_chat_templates, sorted; those that are there.
std::vector<std::filesystem::path> chat_template_files(const std::filesystem::path& directory);

/// chat_template of a tokenizer_config.json or a GGUF file: a text, which is "default", a list of {"name", "template"},
/// or an object of texts. Empty when there is no such file or key. \throws FormatError; IoError
std::vector<NamedTemplate> chat_templates_in(const std::filesystem::path& config);

/// The texts of chat_template_files(); when there are none, those in tokenizer_config.json. \throws FormatError;
/// IoError
std::vector<NamedTemplate> read_chat_templates(const std::filesystem::path& directory);

}  // namespace fsdp
