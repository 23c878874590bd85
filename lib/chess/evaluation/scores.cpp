#include "lib/chess/evaluation/scores.hpp"

#include <ATen/ops/argmax.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "lib/training/evaluate/generate.hpp"
#include "lib/training/evaluate/logits.hpp"

namespace fsdp {
namespace {

/// Makes a batch with a game per row, padded on the right, which causal attention does not see.
/// \param step  rounds the length up to a multiple of this, but at most to `positions`
MicroBatch batch_of(std::span<const ChessSequence> games, std::int64_t limit, std::int64_t step,
                    std::int64_t positions) {
  MicroBatch batch;
  batch.rows = static_cast<std::int64_t>(games.size());
  batch.length = 1;
  const auto length = [&](const ChessSequence& game) {
    return std::min(static_cast<std::int64_t>(game.ids.size()), limit);
  };
  for (const auto& game : games) batch.length = std::max(batch.length, length(game));
  batch.length = std::min((batch.length + step - 1) / step * step, positions);
  batch.ids_N = at::full({batch.rows * batch.length}, 0, at::kInt);
  batch.targets_N = at::full({batch.rows * batch.length}, -1, at::kInt);
  for (std::size_t g = 0; g < games.size(); ++g) {
    std::copy_n(games[g].ids.begin(), length(games[g]),
                batch.ids_N.data_ptr<std::int32_t>() + static_cast<std::int64_t>(g) * batch.length);
  }
  return batch;
}

/// \param predicted  [ids of the game] most likely next id after each id
WordScore score(const ChessSequence& game, WordIds word, std::span<const std::int32_t> predicted,
                const WordEnds& ends) {
  if (word.first == 0) return WordScore::no_context;
  if (word.end > predicted.size()) return WordScore::beyond;
  for (auto i = word.first; i < word.end; ++i) {
    if (predicted[i - 1] != game.ids[i]) return WordScore::wrong;
  }
  return ends.ends_word(predicted[word.end - 1]) ? WordScore::right : WordScore::wrong;
}

}  // namespace

std::vector<std::vector<WordScore>> score_words(ModelRuntime& runtime, std::span<const ChessSequence> games,
                                                std::int64_t limit, const WordEnds& ends) {
  // On GPUs, round lengths up so that the same few shapes recur, as in training.
  const bool on_host = runtime.device().is_cpu();
  auto batch = batch_of(games, limit, on_host ? 1 : kGpuLengthStep, runtime.decoder().config.block_size);
  send_to(runtime.ops(), batch);
  std::vector<std::int32_t> predicted(static_cast<std::size_t>(batch.rows * batch.length));
  const auto vocab = runtime.decoder().config.vocab_size;
  forward_logits(runtime, batch, [&](std::int64_t first, at::Tensor& logits_NV) {
    const auto best_N = runtime.ops().to_host(at::argmax(logits_NV.narrow(1, 0, vocab), 1).to(at::kInt));
    std::copy_n(best_N.const_data_ptr<std::int32_t>(), best_N.numel(), predicted.begin() + first);
  });
  std::vector<std::vector<WordScore>> scores;
  for (std::size_t g = 0; g < games.size(); ++g) {
    const auto length = static_cast<std::size_t>(batch.length);
    const auto seen = std::min(length, static_cast<std::size_t>(limit));
    const auto of_game = std::span(predicted).subspan(g * length, seen);
    std::vector<WordScore> of_words;
    for (const auto word : games[g].words) of_words.push_back(score(games[g], word, of_game, ends));
    scores.push_back(std::move(of_words));
  }
  return scores;
}

std::string generate_word(ModelRuntime& runtime, const std::vector<std::int32_t>& prefix, const Tokenizer& tokenizer,
                          const WordEnds& ends, std::size_t most_bytes) {
  SamplingOptions greedy;
  greedy.temperature = 0;
  greedy.num_tokens = static_cast<std::int64_t>(most_bytes) + 1;  // one more, because an id may spell only a space
  std::string word;
  generate(runtime, prefix, greedy, [&](std::int32_t id) {
    if (ends.is_end_mark(id) || (!word.empty() && ends.ends_word(id))) return false;
    word += tokenizer.decode_one(id);
    if (ends.begins_with_space(id)) word.erase(0, std::min(word.find_first_not_of(" \t\n\r\v\f"), word.size()));
    return word.size() < most_bytes;
  });
  // A piece may contain the end of the word and the start of the next one.
  word.resize(std::min({word.size(), most_bytes, word.find_first_of(" \t\n\r\v\f")}));
  return word;
}

}  // namespace fsdp
