#pragma once
// Functions that need both a model and a tokenizer.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/models/config/model_config.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

/// \throws FormatError when the tokenizer has ids that the model has no embedding for, naming both
void check_vocabulary(const Tokenizer& tokenizer, const std::string& name, const ModelConfig& config);

/// Ids of a text to go on from: what encode_document() gives, without a mark at its end.
std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, std::string_view text);

/// "mingpt", or the name of a family with Llama's kind of layers: "qwen3".
std::string architecture_name(const ModelConfig& config);

}  // namespace fsdp
