#pragma once
// Weights to start from, as Hugging Face stores them.
#include <filesystem>

#include "lib/runtime/model_runtime.hpp"

namespace fsdp {

/// Reads DIR/model.safetensors (or its index), each rank only its rows (of a GPT-2, whose matrices are transposed, a
/// buffer at a time); float32, bf16 and fp16 are converted.
/// \throws FormatError naming a parameter that is missing or has another shape
void load_safetensors_parameters(ModelRuntime& runtime, const std::filesystem::path& directory);

}  // namespace fsdp
