#pragma once
// The targets of models with scores in token files.
#include <string>

#include "lib/models/config/model_config.hpp"
#include "lib/templates/chat/conversation_options.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"
#include "lib/training/data/data_loader.hpp"

namespace fsdp {

/// The head of a model: one score is a reward, several are a classifier's.
HeadKind head_of(const ModelConfig& config);

/// Checks that token files have the targets of the model's head, a classifier's labels, and no text that is so long
/// that its target would be cut off. \param padding  padding_of_texts(), by which the files must have been encoded; -1:
/// not known \param what     the file with its option, for messages \throws RequestError for the targets of another
/// head, or with other labels or another padding; FormatError for a text
///   that is too long
void check_targets(const TokenLoader& rows, const ModelConfig& config, std::int64_t padding, const std::string& what);

/// The id that ends a text and is none of it: that of the model, else of the tokenizer (padding_of()), as TRL chooses
/// it; -1: none. \param tokenizer  may be null
std::int64_t padding_of_texts(const ModelConfig& config, const std::string& tokenizer_name, const Tokenizer* tokenizer);

}  // namespace fsdp
