#pragma once
// A model in the form of llama.cpp: its names, its order of rows, its element types, and the key-value pairs that
// describe it. Source: llama.cpp, convert_hf_to_gguf.py and gguf-py.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/checkpoints/programs/gguf/gguf.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/tokenizers/gguf/vocabulary_for_gguf.hpp"

namespace fsdp {

/// The type of most matrices in a file; vectors and position embeddings are float32 in every file. Source: llama.h
/// (llama_ftype)
enum class GgufFileType : std::uint32_t { f32 = 0, f16 = 1, q8_0 = 7, bf16 = 32 };

/// \throws RequestError when GGUF files are not written in this type
GgufFileType gguf_type_of(DType dtype);
/// The type that most elements of `model` have. \throws RequestError when GGUF files are not written in this type
GgufFileType gguf_type_of(const Source& model);

/// Layers of the models for which llama.cpp scales scores by hidden_size / num_attention_heads instead of head_dim.
inline constexpr std::int64_t kGemma2Of27B = 46, kGemma3Of27B = 62;

/// llama.cpp's name of the architecture.
/// \throws RequestError naming what llama.cpp lacks, or computes otherwise, for a model of this family or with these
/// traits
std::string gguf_architecture(const ModelConfig& config);

/// llama.cpp's name of a parameter.
std::string gguf_name(const ParameterSpec& spec, const DecoderTraits& traits);

/// The factors by which llama.cpp multiplies the wavelengths of Llama 3.1 (rope_freqs.weight), of a model whose
/// rope_scaling is llama3. Source: convert_hf_to_gguf.py (generate_extra_tensors), in float32 as there.
std::vector<float> gguf_rope_factors(const ModelConfig& config);

/// A remark on rotary positions that not every llama.cpp computes as transformers does; empty: none.
std::string gguf_rope_remark(const ModelConfig& config);

/// Returns the model under llama.cpp's names: rows of queries and keys are permuted where llama.cpp rotates
/// neighbouring elements, RMSNorms that multiply by 1 + weight have the sum, and Conv1D matrices of a GPT-2 are
/// transposed. Tensors have the order of their names in transformers. A head that config.json ties is left out. Lazy.
/// \param model  the model alone, under transformers' names or ours
/// \throws RequestError on a tensor that the model does not have, on a tied head that differs from the embedding, on a
/// quantized model; FormatError on a missing tensor and on a wrong shape; what gguf_architecture() throws
std::shared_ptr<const Source> gguf_model(std::shared_ptr<const Source> model, const ModelConfig& config,
                                         GgufFileType type);

/// The key-value pairs of the file, in the converter's order.
/// \param model       as gguf_model() returns it
/// \param name        of the model, for people
/// \param vocabulary  none: the file has no tokenizer
std::vector<GgufEntry> gguf_entries(const Source& model, const ModelConfig& config, GgufFileType type,
                                    const std::string& name, const std::optional<GgufVocabulary>& vocabulary);

}  // namespace fsdp
