#pragma once
// Writes a model with its tokenizer as one file for llama.cpp.
#include <memory>

#include "lib/checkpoints/programs/conversion_request.hpp"

namespace fsdp {

/// FormatWriter::adapt() of GGUF: the model alone, in the type that merged matrices have, so that these are rounded
/// once and vectors stay float32.
void adapt_to_gguf(const Source& original, const Conversion& options, SourceChanges& changes, const Logger& log);

/// FormatWriter::make() of GGUF. The source becomes the model under llama.cpp's names.
std::unique_ptr<Target> make_gguf_target(WriteRequest& request);

}  // namespace fsdp
