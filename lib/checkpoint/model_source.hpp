#pragma once
// Checkpoints as the models here have them, whatever their files hold.
#include <filesystem>
#include <memory>

#include "lib/source/source.hpp"

namespace fsdp {

/// True for a directory whose config.json says model_type gpt2: transformers' GPT-2, which keeps its matrices
/// transposed (Conv1D) and may leave out the prefix "transformer.".
bool is_gpt2_directory(const std::filesystem::path& path);

/// open_source(), and a GPT-2 directory with the names and shapes of the minGPT that it is.
/// \throws FormatError also on a tensor that a GPT-2 does not have
std::unique_ptr<Source> open_model_source(const std::filesystem::path& path);

}  // namespace fsdp
