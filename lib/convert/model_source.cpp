#include "lib/checkpoint/model_source.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/convert/name_map_table.hpp"
#include "lib/convert/transform.hpp"

namespace fsdp {
namespace {

bool is_gpt2_directory(const std::filesystem::path& path) {
  constexpr std::uint64_t limit_bytes = 1u << 20;
  std::error_code error;
  const auto config = path / "config.json";
  if (!std::filesystem::is_regular_file(config, error)) return false;
  const auto text = read_text_file(config, limit_bytes);
  const auto json = parse_json_or_discard(text, config.string());
  return json.is_object() && json.value("model_type", nlohmann::json()) == "gpt2";
}

}  // namespace

std::unique_ptr<Source> open_model_source(const std::filesystem::path& path) {
  auto source = open_source(path);
  if (!is_gpt2_directory(path)) return source;
  for (const auto& tensor : source->tensors()) {
    if (!mapped_name(NameMap::gpt2_to_mingpt, tensor.name)) {
      throw FormatError(path.string() + ": tensor '" + tensor.name + "' has no place in the GPT-2 of its config.json");
    }
  }
  return map_names(std::move(source), NameMap::gpt2_to_mingpt, nullptr);
}

}  // namespace fsdp
