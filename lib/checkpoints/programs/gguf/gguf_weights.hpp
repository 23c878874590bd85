#pragma once
#include <memory>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// Presents a GGUF file as a model: the reverse of gguf_model(). Tensors have transformers' names (a gpt2's those of
/// our minGPT), rows of a llama's queries and keys lie in halves again, norms of Gemma lose the 1 that was added, and
/// quantised matrices are float32. info().model_config is the config.json that the metadata tells, info().directory the
/// file itself, so that no config.json that lies beside it is taken for its own. Lazy, some elements at a time.
/// \param gguf  as open_source() returns it
/// \throws FormatError naming the file, and what config_of_gguf() and read_gguf_metadata() name; a tensor that is
/// missing, has another shape or no place in the model; an element type that is not read; factors of rotary positions
/// that are none of llama3's
std::unique_ptr<Source> gguf_as_model(std::shared_ptr<const Source> gguf);

/// True for a source of a GGUF file under llama.cpp's names.
bool is_gguf_source(const Source& source);

}  // namespace fsdp
