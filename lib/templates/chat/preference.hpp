#pragma once
// Reads a preference: a prompt with an answer that is preferred to another, in the forms that TRL reads.
#include <nlohmann/json.hpp>

namespace fsdp {

/// Two samples of one prompt and a completion.
struct Preference {
  nlohmann::ordered_json chosen, rejected;
};

/// True if `chosen` and `rejected` of `record` are lists, of messages.
bool is_message_preference(const nlohmann::ordered_json& record);

/// Reads `prompt`, `chosen` and `rejected`: strings, or lists of messages. Without a `prompt` of the answers' kind the
/// prompt is what both answers begin with; of texts without the space before they part, of messages at most all but the
/// last. Source: maybe_extract_prompt() of TRL 1.16.
/// \throws FormatError naming the key that is missing or of another kind
Preference read_preference(const nlohmann::ordered_json& record);

}  // namespace fsdp
