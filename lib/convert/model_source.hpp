#pragma once
// Checkpoints as the models here have them, whatever their files hold.
#include <filesystem>
#include <memory>

#include "lib/source/source.hpp"

namespace fsdp {

/// open_source(); and a directory whose config.json says model_type gpt2 with the names and shapes of the minGPT that
/// it is: transformers' GPT-2 keeps its matrices transposed (Conv1D) and may leave out the prefix "transformer.".
/// \throws FormatError also on a tensor that a GPT-2 does not have
std::unique_ptr<Source> open_model_source(const std::filesystem::path& path);

}  // namespace fsdp
