#include "lib/training/evaluate/generation_ends.hpp"

#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lib/formats/gguf_metadata.hpp"
#include "lib/tokenizers/files/json_file.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"

namespace fsdp {
namespace {

constexpr const char* kKey = "eos_token_id";

std::int32_t read_id(const JsonValue& value) {
  const auto id = value.integer();
  if (id < std::numeric_limits<std::int32_t>::min() || id > std::numeric_limits<std::int32_t>::max())
    value.fail("is no token id");
  return static_cast<std::int32_t>(id);
}

std::vector<std::int32_t> read_ends(const std::filesystem::path& file) {
  const auto json = read_json_object(file);
  const auto value = JsonValue(json, file.string()).get(kKey);
  if (value.is_null()) return {};
  if (!value.json().is_array()) return {read_id(value)};
  std::vector<std::int32_t> ends;
  for (const auto& element : value.elements()) ends.push_back(read_id(element));
  if (ends.empty()) value.fail("is an empty list, expected a token id, some of them or null");
  return ends;
}

/// The ends of a text and of a turn that a GGUF file names.
std::vector<std::int32_t> ends_of_gguf(const std::filesystem::path& file) {
  const auto json = read_gguf_metadata(file);
  const JsonValue root(json, file.string());
  std::vector<std::int32_t> ends;
  for (const auto* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"})
    if (const auto value = root.get(key); !value.is_null()) ends.push_back(read_id(value));
  return ends;
}

}  // namespace

std::vector<std::int32_t> generation_ends(const std::vector<std::filesystem::path>& directories) {
  for (const auto& directory : directories) {
    if (directory.empty() || directory == kBuiltInTokenizer) continue;  // no model's: the built-in tokenizer
    if (is_gguf_file(directory)) return ends_of_gguf(directory);
    for (const char* name : {"generation_config.json", "config.json"}) {
      std::error_code ignored;
      if (std::filesystem::exists(directory / name, ignored)) return read_ends(directory / name);
    }
  }
  return {};
}

}  // namespace fsdp
