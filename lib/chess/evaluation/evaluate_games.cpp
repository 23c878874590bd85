#include "lib/chess/evaluation/evaluate_games.hpp"

#include <ATen/ops/argmax.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <tuple>
#include <utility>

#include "lib/base/messages/progress.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"
#include "lib/chess/evaluation/games.hpp"
#include "lib/chess/rules/game.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/evaluate/evaluate.hpp"
#include "lib/training/evaluate/generate.hpp"
#include "lib/training/step/sequence_losses.hpp"

namespace fsdp {

bool PositionSample::Drawn::operator<(const Drawn& other) const {
  return std::tie(round, key, position.game, position.move) <
         std::tie(other.round, other.key, other.position.game, other.position.move);
}

void PositionSample::offer(std::int64_t game, const std::string& text, std::size_t first, std::size_t count,
                           const std::vector<bool>& right) {
  const auto seed = sample_key(seed_, game);
  std::vector<std::size_t> moves(count);
  std::iota(moves.begin(), moves.end(), first);
  std::shared_ptr<const std::string> shared;
  for (std::size_t round = 0; round < std::min(count, wanted_); ++round) {
    // Draws the next move in a random order of the game's moves.
    const auto key = sample_key(seed, static_cast<std::int64_t>(round));
    std::swap(moves[round], moves[round + key % (count - round)]);
    Drawn drawn{round, key, {game, moves[round], nullptr, !right.empty() && right[moves[round]]}};
    if (kept_.size() == wanted_) {
      if (!(drawn < *kept_.rbegin())) return;  // later rounds of this game sort after this one and are not kept either
      kept_.erase(std::prev(kept_.end()));
    }
    if (shared == nullptr) shared = std::make_shared<const std::string>(text);
    drawn.position.text = shared;
    kept_.insert(std::move(drawn));
  }
}

std::vector<ChessPosition> PositionSample::take() const {
  std::vector<ChessPosition> positions;
  for (const auto& drawn : kept_) positions.push_back(drawn.position);
  std::ranges::sort(positions, {}, [](const ChessPosition& p) { return std::pair(p.game, p.move); });
  return positions;
}

namespace {

/// Makes a batch with a game per row, padded on the right, which causal attention does not see.
/// \param step  rounds the length up to a multiple of this, but at most to `positions`
MicroBatch batch_of(std::span<const ChessSequence> games, std::int64_t limit, std::int64_t step,
                    std::int64_t positions) {
  MicroBatch batch;
  batch.rows = std::ssize(games);
  batch.length = 1;
  const auto length = [&](const ChessSequence& game) { return std::min(std::ssize(game.ids), limit); };
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

/// The counts of a game, as numbers that an all-reduce can sum.
enum Figure : std::size_t { first_scored, scored, right, beyond, results, results_right, num_figures };
using GameFigures = std::array<double, num_figures>;

GameFigures figures_of(std::span<const WordScore> words, std::size_t num_moves) {
  const auto moves = words.first(num_moves), result = words.subspan(num_moves);
  const auto is_scored = [](WordScore s) { return s == WordScore::wrong || s == WordScore::right; };
  const auto count = [](std::span<const WordScore> of, WordScore s) {
    return static_cast<double>(std::ranges::count(of, s));
  };
  GameFigures figures{};
  figures[first_scored] = static_cast<double>(std::ranges::find_if(moves, is_scored) - moves.begin());
  figures[scored] = static_cast<double>(std::ranges::count_if(moves, is_scored));
  figures[right] = count(moves, WordScore::right);
  figures[beyond] = count(moves, WordScore::beyond);
  figures[results] = static_cast<double>(std::ranges::count_if(result, is_scored));
  figures[results_right] = count(result, WordScore::right);
  return figures;
}

class ChessEvaluator {
 public:
  ChessEvaluator(ModelRuntime& runtime, const Tokenizer& tokenizer, ChessGameSource& source,
                 const ChessOptions& options, const Logger& log, const std::function<bool()>& stopped)
      : runtime_(runtime),
        world_(runtime.world()),
        tokenizer_(tokenizer),
        source_(source),
        options_(options),
        log_(log),
        stopped_(stopped),
        ends_(tokenizer, runtime.decoder().config.vocab_size),
        sample_(static_cast<std::size_t>(options.positions), options.seed) {}

  std::optional<ChessEvaluation> run() {
    const auto start = std::chrono::steady_clock::now();
    if (!score_games() || !play_positions()) return std::nullopt;
    result_.accuracy = ratio(right_, moves_);
    result_.result_accuracy = ratio(results_right_, results_);
    result_.seconds = seconds_since(start);
    return std::move(result_);
  }

 private:
  static constexpr double kSecondsBetweenLines = 30;

  bool is_stopped() const { return stopped_ && stopped_(); }

  /// \return false when stopped
  bool score_games() {
    Progress progress(log_, options_.show_progress, kSecondsBetweenLines);
    for (;;) {
      const auto games = source_.next(static_cast<std::size_t>(options_.batch_size * runtime_.data_ranks().size));
      result_.skipped = source_.skipped();
      if (games.texts.empty()) break;
      if (is_stopped()) return false;
      score_round(games);
      progress.show_share("chess     games", source_.share_read(),
                          fmt::format("{}, {} of {} right", format_count_of(result_.games, "game"),
                                      format_count(result_.moves_right), format_count_of(result_.moves, "move")));
    }
    if (result_.games == 0) {
      throw FormatError(source_.name() + ": holds no game" +
                        (result_.skipped.count > 0 ? "; the first text: " + result_.skipped.first : std::string()));
    }
    return true;
  }

  void score_round(const ChessGames& games) {
    const auto count = games.texts.size();
    const auto mine_of = runtime_.data_ranks().share(static_cast<std::int64_t>(count));
    const auto begin = static_cast<std::size_t>(mine_of.first), end = static_cast<std::size_t>(mine_of.second);
    std::vector<ChessSequence> own_games;
    run_agreed(world_, [&] {
      for (auto g = begin; g < end; ++g) own_games.push_back(encode_game(tokenizer_, games.texts[g]));
    });
    const auto scores = score_words(runtime_, own_games, options_.limit, ends_);

    std::vector<double> figures(count * num_figures);
    for (auto g = begin; g < end; ++g) {
      std::ranges::copy(figures_of(scores[g - begin], games.moves[g]), iterator_at(figures, g * num_figures));
    }
    world_.all_reduce(figures, Reduce::sum);  // one rank fills in each game, the others add zeros
    for (std::size_t g = 0; g < count; ++g) {
      std::vector<bool> right_moves;
      for (std::size_t m = 0; g >= begin && g < end && m < games.moves[g]; ++m) {
        right_moves.push_back(scores[g - begin][m] == WordScore::right);
      }
      add(games.texts[g], std::span(figures).subspan(g * num_figures, num_figures), right_moves);
    }
  }

  void add(const std::string& text, std::span<const double> figures, const std::vector<bool>& right_moves) {
    sample_.offer(result_.games, text, static_cast<std::size_t>(figures[first_scored]),
                  static_cast<std::size_t>(figures[scored]), right_moves);
    moves_.push_back(figures[scored]);
    right_.push_back(figures[right]);
    results_.push_back(figures[results]);
    results_right_.push_back(figures[results_right]);
    const auto whole = [&](Figure figure) { return static_cast<std::int64_t>(figures[figure]); };
    ++result_.games;
    result_.moves += whole(scored);
    result_.moves_right += whole(right);
    result_.results += whole(results);
    result_.results_right += whole(results_right);
    result_.moves_not_scored += whole(beyond);
    if (whole(beyond) > 0) ++result_.games_cut;
  }

  /// \return false when stopped
  bool play_positions() {
    const auto positions = sample_.take();
    std::vector<double> legal(positions.size());
    for (std::size_t i = 0; i < positions.size(); ++i) legal[i] = positions[i].right ? 1 : 0;
    world_.all_reduce(legal, Reduce::sum);  // one rank fills in each position, the others add zeros
    Progress progress(log_, options_.show_progress, kSecondsBetweenLines);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      // If the model would play the game's own move, the move is legal without generating it.
      if (legal[i] == 0) {
        if (is_stopped()) return false;
        if (plays_legally(positions[i])) legal[i] = 1;
      }
      progress.show_share("chess     positions", static_cast<double>(i + 1) / static_cast<double>(positions.size()),
                          fmt::format("{} of {}", i + 1, positions.size()));
    }
    result_.positions = std::ssize(positions);
    result_.positions_legal = static_cast<std::int64_t>(std::accumulate(legal.begin(), legal.end(), 0.0));
    result_.legal = ratio(legal, std::vector<double>(legal.size(), 1.0));
    return true;
  }

  bool plays_legally(const ChessPosition& at) {
    constexpr std::size_t kMostBytes = 8, kMostMistakes = 5;  // a UCI move has 4 or 5 bytes
    const auto game = encode_game(tokenizer_, *at.text);
    const auto prefix = std::vector(game.ids.begin(), iterator_at(game.ids, game.words[at.move].first));
    const auto word = generate_word(runtime_, prefix, tokenizer_, ends_, kMostBytes);
    ++result_.positions_generated;
    const auto words = chess::split_game(*at.text);
    std::vector<std::string_view> moves(words.moves.begin(), iterator_at(words.moves, at.move));
    moves.push_back(word);
    const auto replay = chess::replay(moves);
    if (replay.problem.empty()) return true;
    ++(chess::parse_uci(word) ? result_.illegal : result_.not_a_move);
    if (result_.mistakes.size() < kMostMistakes) {
      moves.pop_back();
      result_.mistakes.push_back({fmt::format("{}", fmt::join(moves, " ")), word, replay.problem});
    }
    return false;
  }

  ModelRuntime& runtime_;
  ProcessGroup& world_;
  const Tokenizer& tokenizer_;
  ChessGameSource& source_;
  const ChessOptions& options_;
  const Logger& log_;
  const std::function<bool()>& stopped_;
  WordEnds ends_;
  PositionSample sample_;
  ChessEvaluation result_;
  std::vector<double> moves_, right_, results_, results_right_;  ///< one value per game
};

}  // namespace

std::vector<std::vector<WordScore>> score_words(ModelRuntime& runtime, std::span<const ChessSequence> games,
                                                std::int64_t limit, const WordEnds& ends) {
  // On GPUs, round lengths up so that the same few shapes recur, as in training.
  const bool on_host = runtime.device().is_cpu();
  auto batch = batch_of(games, limit, on_host ? 1 : kGpuLengthStep, row_positions(runtime.decoder().config, limit));
  send_to(runtime.ops(), batch);
  std::vector<std::int32_t> predicted(batch.rows * batch.length);
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

std::optional<ChessEvaluation> evaluate_chess(ModelRuntime& runtime, const Tokenizer& tokenizer, ChessGameSource& games,
                                              const ChessOptions& options, const Logger& log,
                                              const std::function<bool()>& stopped) {
  return ChessEvaluator(runtime, tokenizer, games, options, log, stopped).run();
}

}  // namespace fsdp
