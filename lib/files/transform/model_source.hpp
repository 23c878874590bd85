#pragma once
// Opens checkpoints with the names and shapes of our models, in whatever form the files store them.
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "lib/files/read/source.hpp"

namespace fsdp {

/// True for a directory whose config.json has model_type gpt2.
bool is_gpt2_directory(const std::filesystem::path& path);
/// True for such a directory with matrices of [in, out] (Conv1D). In 4 bits the matrices are [out, in], because
/// bitsandbytes' Linear4bit replaces Conv1D. \throws FormatError when the quantization is not supported
bool has_conv1d_matrices(const std::filesystem::path& path);

/// The layout of the matrices of a GPT-2, from attn.c_attn, which is never square: true for [in, out], false for [out,
/// in]; nothing when no such matrix is stored as numbers, as in 4 bits.
std::optional<bool> conv1d_layout(const Source& source);

/// Maps the tensors of a GPT-2 to the names and shapes of our minGPT. \param path  for messages
/// \throws FormatError on a tensor that a GPT-2 does not have
std::unique_ptr<Source> gpt2_as_mingpt(std::shared_ptr<const Source> source, const std::filesystem::path& path);

/// The name of a tensor or module of a multimodal Gemma 3 in its language model, in both layouts of transformers
/// ("language_model.model.layers.0", "model.language_model.layers.0"); empty for its part for images; any other name as
/// it is.
std::string language_model_name(std::string_view name);

/// The language model of a directory whose config.json has model_type gemma3 (multimodal), under the names of the model
/// alone; `source` itself for others.
std::shared_ptr<const Source> language_model(std::shared_ptr<const Source> source);

/// Presents the tensors of a directory with this config.json as open_model_source() would. \param path  for messages
/// \throws FormatError as gpt2_as_mingpt()
std::shared_ptr<const Source> as_stored_for(std::shared_ptr<const Source> source, const nlohmann::json& config,
                                            const std::filesystem::path& path);

/// Opens a checkpoint like open_source(), reads of a multimodal Gemma 3 the language model, and maps a directory whose
/// config.json has model_type gpt2 to the names and shapes of our minGPT: transformers' GPT-2 stores its matrices
/// transposed (Conv1D) and may lack the prefix "transformer.". A GGUF file is read as gguf_as_model() presents it. A
/// dense Llama or Qwen of Megatron-core gets transformers' names, too. \param config  config.json of a model of
/// Megatron-core, or its directory; empty: its args tell \throws FormatError also on a tensor that a GPT-2 does not
/// have, and as megatron_as_hf()
std::unique_ptr<Source> open_model_source(const std::filesystem::path& path, const std::filesystem::path& config = {});
/// The same of the weights alone (open_weights()).
std::unique_ptr<Source> open_model_weights(const std::filesystem::path& path);

}  // namespace fsdp
