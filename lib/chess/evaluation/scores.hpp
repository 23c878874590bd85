#pragma once
// Scores the words of chess games by a model's greedy predictions, and generates words.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/chess/evaluation/sequence.hpp"
#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

enum class WordScore : std::uint8_t {
  no_context,  ///< the word is first in the text, so nothing predicts it
  beyond,      ///< the word lies beyond the limit
  wrong,
  right
};

/// Scores the words of each game in one forward pass. A word is right when each of its ids is the most likely one given
/// the ids before it, and the most likely id after it ends the word; then greedy generation from the text before the
/// word would write it.
/// Collective; ranks may have different games, or none. \param limit  maximum number of ids of a game that the model
/// gets
std::vector<std::vector<WordScore>> score_words(ModelRuntime& runtime, std::span<const ChessSequence> games,
                                                std::int64_t limit, const WordEnds& ends);

/// Generates the next word greedily with the key-value cache, without its leading space. A word longer than
/// `most_bytes` is cut off. \return the word; empty when the model ends the text instead. Collective, with the same
/// arguments and result on all ranks
std::string generate_word(ModelRuntime& runtime, const std::vector<std::int32_t>& prefix, const Tokenizer& tokenizer,
                          const WordEnds& ends, std::size_t most_bytes);

}  // namespace fsdp
