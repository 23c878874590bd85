#pragma once
// Dense Llamas and Qwens of Megatron-core under transformers' names and in their layout, and the reverse. Megatron-core
// stacks the layers, keeps queries, keys and values of each query group together, and gate and up in one matrix.
// Source: megatron-core 0.19 core/transformer/{attention,mlp,transformer_block}.py, core/optimizer/optimizer.py.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "lib/base/types/dtype.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// SourceInfo::format of what megatron_as_hf() returns.
inline constexpr const char* kMegatronFormat = "Megatron-core torch_dist";

/// True for a checkpoint of a GPTModel under the names that Megatron-core saves.
bool is_megatron(const Source& source);

/// Presents "model.<name>" in the float32 masters if there are any, "optim.state.<name>.<key>",
/// "optim.param_groups.<n>", and the values that all ranks share. The model's sizes are from args of the checkpoint and
/// from config.json; the source's model_config() is the result. Rows of padding beyond vocab_size are cut.
/// \param config  config.json or its directory, which may hold some fields only; empty: the one beside the tensors
/// \throws RequestError when nothing tells a size, or config.json contradicts args; FormatError on a tensor or an
/// argument that no dense Llama or Qwen has, and on shapes that do not fit
std::unique_ptr<Source> megatron_as_hf(std::shared_ptr<const Source> source, const std::filesystem::path& config);

/// Presents a model, and the optimizer's state of all parameters, under Megatron-core's names. The stored pieces of a
/// stack are its layers. Values are what modules of the Transformer Engine save beside their weights.
/// \param masters  also present float32 weights as masters where there is an optimizer's state
/// \throws RequestError on a model that Megatron-core's GPTModel does not have, and on tensors that do not fit it
std::unique_ptr<Source> hf_as_megatron(std::shared_ptr<const Source> source, const ModelConfig& config, bool masters);

/// The parts of a checkpoint of Megatron-core beside the tensors of hf_as_megatron().
struct MegatronBeside {
  std::string folder;  ///< iter_0000500, or release when no number of steps is known
  std::string common;  ///< the bytes of common.pt
};
/// \param original  with settings and steps of the optimizer; \param dtype  of the weights
MegatronBeside megatron_beside(const Source& original, const ModelConfig& config, DType dtype, bool has_optimizer);

}  // namespace fsdp
