#pragma once
// Where a model and a tokenizer meet.
#include <cstdint>
#include <span>
#include <string>

#include "lib/config/model_config.hpp"
#include "lib/tokenizer/tokenizer.hpp"

namespace fsdp {

/// \throws FormatError when the tokenizer has ids that the model has no embedding for, naming both
void check_vocabulary(const Tokenizer& tokenizer, const std::string& name, const ModelConfig& config);

/// The text of generated ids. A model may have more ids than its tokenizer has pieces: those are left out.
std::string continuation(const Tokenizer& tokenizer, std::span<const std::int32_t> ids);

/// "mingpt", or the family of Llama's kin: "qwen3"
std::string architecture_name(const ModelConfig& config);

}  // namespace fsdp
