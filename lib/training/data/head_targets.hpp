#pragma once
// The targets of models with scores in token files.
#include <string>

#include "lib/models/config/model_config.hpp"
#include "lib/templates/chat/conversation_options.hpp"
#include "lib/token_files/token_file.hpp"

namespace fsdp {

/// The head of a model: one score is a reward, several are a classifier's.
HeadKind head_of(const ModelConfig& config);

/// Checks that a token file has the targets of the model's head, and a classifier's labels.
/// \param what  the file with its option, for messages
/// \throws RequestError for the targets of another head, or with other labels
void check_targets(const TokenFile& tokens, const ModelConfig& config, const std::string& what);

/// "a, b, c, ...": the first labels, for messages.
std::string list_of_labels(const std::vector<std::string>& labels);

}  // namespace fsdp
