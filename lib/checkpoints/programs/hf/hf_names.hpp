#pragma once
// The names and layouts of models in transformers' files, beside those of Meta and of our minGPT.
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "lib/checkpoints/source/source.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// Maps between our (PyTorch) names and those of Hugging Face's transformers. A Llama has the same names in both: its
/// maps check the names, complete those of a bare LlamaModel to "model.*", and drop buffers that older versions stored.
/// llama_to_hf also reads the original names of Meta (layers.0.attention.wq.weight), hf_to_meta writes them.
enum class NameMap { none, mingpt_to_gpt2, gpt2_to_mingpt, llama_to_hf, hf_to_llama, hf_to_meta };

/// Renames the tensors of the model; a prefix from nesting stays. Also changes the layout where it differs: Conv1D
/// matrices of GPT-2 are transposed, and queries and keys of Meta have the halves of each rotary pair side by side.
/// \param config  numbers of heads, for Meta's names; null: source->model_config()
/// \throws RequestError naming the first tensor that the map does not know, or one of the optimizer, since maps are for
/// the model only
std::unique_ptr<Source> map_names(std::shared_ptr<const Source> source, NameMap map,
                                  const ModelConfig* config = nullptr);

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

}  // namespace fsdp
