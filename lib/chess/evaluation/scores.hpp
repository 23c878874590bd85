#pragma once
// What a model makes of games of chess: which words it would have written itself, and what it writes in their place.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/chess/evaluation/sequence.hpp"
#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

enum class WordScore : std::uint8_t {
  no_context,  ///< nothing comes before it
  beyond,      ///< the limit
  wrong,
  right
};

/// Scores of the words of `games`, each game's in order, by one forward pass: a word is right when each of its ids is
/// the most likely one after those before it, and the most likely id after it ends the word. That is what greedy
/// generation from the text before it would write.
/// Collective; ranks may have different games, or none. \param limit  ids of a game that the model sees
std::vector<std::vector<WordScore>> score_words(ModelRuntime& runtime, std::span<const ChessSequence> games,
                                                std::int64_t limit, const WordEnds& ends);

/// The next word by greedy generation with the key-value cache, without the space before it. What does not end after
/// `most_bytes` is cut there. Empty when the model ends the text instead. Collective: the same on all ranks.
std::string generate_word(ModelRuntime& runtime, const std::vector<std::int32_t>& prefix, const Tokenizer& tokenizer,
                          const WordEnds& ends, std::size_t most_bytes);

}  // namespace fsdp
