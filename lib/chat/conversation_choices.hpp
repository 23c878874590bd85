#pragma once
// What a user may choose about how conversations and prompts become ids.
#include <cstdint>

namespace fsdp {

/// What the name of a special token means inside a message, a prompt or a completion.
enum class MarksInTexts : std::uint8_t {
  tokens,     ///< the token, as transformers reads it
  plain_text  ///< its characters: only what the template writes is a mark
};

/// How a prompt and its completion become ids.
enum class PairEncoding : std::uint8_t {
  joint,    ///< as one text; as many of its first ids as the prompt alone has are the prompt's, as TRL counts
  separate  ///< each by itself
};

/// What of a sample the loss counts. By default answers: completions and the assistant's turns with their end marks; of
/// texts always everything.
enum class TrainOn : std::uint8_t { answers, all };

}  // namespace fsdp
