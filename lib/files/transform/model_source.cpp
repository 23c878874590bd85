#include "lib/files/transform/model_source.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/files/read/stored_quantization.hpp"
#include "lib/files/transform/name_map.hpp"
#include "lib/files/transform/transform.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {
bool is_gpt2_directory(const std::filesystem::path& path) {
  constexpr std::uint64_t limit_bytes = 1u << 20;
  std::error_code error;
  const auto config = path / "config.json";
  if (!std::filesystem::is_regular_file(config, error)) return false;
  const auto text = read_text_file(config, limit_bytes);
  const auto json = parse_json_or_discard(text, config.string());
  return json.is_object() && json.value("model_type", nlohmann::json()) == "gpt2";
}

bool has_conv1d_matrices(const std::filesystem::path& path) {
  return is_gpt2_directory(path) && !stored_quantization(path);
}

std::optional<bool> conv1d_layout(const Source& source) {
  for (const auto& tensor : source.tensors()) {
    if (!tensor.name.ends_with("attn.c_attn.weight") || tensor.shape.size() != 2) continue;
    if (tensor.shape[1] == 3 * tensor.shape[0]) return true;
    if (tensor.shape[0] == 3 * tensor.shape[1]) return false;
  }
  return std::nullopt;
}

std::unique_ptr<Source> gpt2_as_mingpt(std::shared_ptr<const Source> source, const std::filesystem::path& path) {
  for (const auto& tensor : source->tensors()) {
    if (!mapped_name(NameMap::gpt2_to_mingpt, tensor.name)) {
      throw FormatError(path.string() + ": tensor '" + tensor.name + "' has no place in the GPT-2 of its config.json");
    }
  }
  return map_names(std::move(source), NameMap::gpt2_to_mingpt, nullptr);
}

std::unique_ptr<Source> open_model_source(const std::filesystem::path& path) {
  auto source = open_source(path);
  refuse_other_quantization(*source);
  return has_conv1d_matrices(path) ? gpt2_as_mingpt(std::move(source), path) : std::move(source);
}

}  // namespace fsdp
