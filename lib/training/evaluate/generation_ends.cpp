#include "lib/training/evaluate/generation_ends.hpp"

#include <limits>
#include <system_error>

#include "lib/text/tokenizer/json_file.hpp"

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

}  // namespace

std::vector<std::int32_t> generation_ends(const std::vector<std::filesystem::path>& directories) {
  for (const auto& directory : directories) {
    if (directory.empty() || directory == "gpt2") continue;  // no model's: the built-in tokenizer
    for (const char* name : {"generation_config.json", "config.json"}) {
      std::error_code ignored;
      if (std::filesystem::exists(directory / name, ignored)) return read_ends(directory / name);
    }
  }
  return {};
}

}  // namespace fsdp
