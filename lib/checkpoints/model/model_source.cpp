#include "lib/checkpoints/model/model_source.hpp"

#include <utility>

#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/gguf/gguf_weights.hpp"
#include "lib/checkpoints/programs/hf/hf_names.hpp"
#include "lib/checkpoints/programs/megatron/megatron_source.hpp"
#include "lib/checkpoints/source/stored_quantization.hpp"
#include "lib/checkpoints/transform/model_tensors.hpp"

namespace fsdp {
namespace {

std::shared_ptr<const Source> as_model_source(std::shared_ptr<const Source> source, const std::filesystem::path& path,
                                              const std::filesystem::path& config) {
  if (is_gguf_source(*source)) return gguf_as_model(std::move(source));
  refuse_other_quantization(*source);
  refuse_adapters_inside(*source);
  if (is_megatron(*source)) return megatron_as_hf(std::move(source), config);
  if (has_conv1d_matrices(path)) return gpt2_as_mingpt(std::move(source), path);
  return std::filesystem::is_directory(path) ? language_model(std::move(source)) : std::move(source);
}

}  // namespace

std::shared_ptr<const Source> open_model_source(const std::filesystem::path& path,
                                                const std::filesystem::path& config) {
  return as_model_source(open_source(path), path, config);
}

std::shared_ptr<const Source> open_model_weights(const std::filesystem::path& path) {
  return as_model_source(open_weights(path), path, {});
}

}  // namespace fsdp
