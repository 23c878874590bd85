#pragma once
// Opens checkpoints with the names and shapes of our models, in whatever form the files store them.
#include <filesystem>
#include <memory>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// Opens a checkpoint like open_source(), reads of a multimodal Gemma 3 the language model, and maps a directory whose
/// config.json has model_type gpt2 to the names and shapes of our minGPT: transformers' GPT-2 stores its matrices
/// transposed (Conv1D) and may lack the prefix "transformer.". A GGUF file is read as gguf_as_model() presents it. A
/// dense Llama or Qwen of Megatron-core gets transformers' names, too. \param config  config.json of a model of
/// Megatron-core, or its directory; empty: its args tell \throws FormatError also on a tensor that a GPT-2 does not
/// have, and as megatron_as_hf()
std::shared_ptr<const Source> open_model_source(const std::filesystem::path& path,
                                                const std::filesystem::path& config = {});
/// The same of the weights alone (open_weights()).
std::shared_ptr<const Source> open_model_weights(const std::filesystem::path& path);

}  // namespace fsdp
