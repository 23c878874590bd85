#pragma once
// Whether the ids of a token file are the model's.
#include <filesystem>

#include "lib/models/config/model_config.hpp"
#include "lib/text/tokenizer/tokenizer.hpp"

namespace fsdp {

/// Refuses a token file whose notes name a larger vocabulary than the model has, or another kind or size of tokenizer
/// than `tokenizer`. Names and paths do not count: one vocabulary lies in many places. A file without notes passes.
/// \param tokenizer  that the model is known to have; null: only the model's vocabulary is looked at
/// \throws FormatError naming both
void check_token_origin(const std::filesystem::path& file, const Tokenizer* tokenizer, const ModelConfig& model);

}  // namespace fsdp
