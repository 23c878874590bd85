#include "lib/tokenizers/files/chat_templates.hpp"

#include <algorithm>

#include "lib/base/files/file.hpp"
#include "lib/formats/gguf_metadata.hpp"
#include "lib/tokenizers/files/json_file.hpp"
#include "lib/tokenizers/gguf/gguf_tokenizer.hpp"

namespace fsdp {
namespace {

constexpr const char* kFile = "chat_template.jinja";

}  // namespace

std::vector<std::filesystem::path> chat_template_files(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory / "additional_chat_templates", ignored)) {
    if (entry.path().extension() == ".jinja") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (const auto file = directory / kFile; std::filesystem::exists(file, ignored)) files.insert(files.begin(), file);
  return files;
}

std::vector<NamedTemplate> chat_templates_in(const std::filesystem::path& config) {
  std::error_code ignored;
  if (!std::filesystem::exists(config, ignored)) return {};
  const auto json = is_gguf_file(config) ? gguf_tokenizer_config(config) : read_json_object(config);
  const auto value = JsonValue(json, config.string()).get("chat_template");
  if (value.is_null()) return {};
  if (value.is_string()) return {{"default", value.string(), config}};
  std::vector<NamedTemplate> templates;
  if (value.json().is_object()) {
    for (const auto& [name, text] : value.json().items()) templates.push_back({name, value.at(name).string(), config});
  } else {
    for (const auto& one : value.elements())
      templates.push_back({one.at("name").string(), one.at("template").string(), config});
  }
  return templates;
}

std::vector<NamedTemplate> read_chat_templates(const std::filesystem::path& directory) {
  if (has_gguf_tokenizer(directory)) return chat_templates_in(directory);
  std::vector<NamedTemplate> templates;
  for (const auto& file : chat_template_files(directory)) {
    const auto name = file.filename() == kFile && file.parent_path() == directory ? "default" : file.stem().string();
    templates.push_back({name, read_text_file(file, kMostTemplateBytes), file});
  }
  return templates.empty() ? chat_templates_in(directory / "tokenizer_config.json") : templates;
}

}  // namespace fsdp
