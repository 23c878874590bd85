#include "apps/finetune/validation/validation_games.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/hash_functions.hpp"
#include "lib/base/types/index.hpp"
#include "lib/chess/evaluation/games.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/models/config/rope.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/reports/runs/step_report.hpp"

namespace fsdp::detail {
namespace {

/// Most ids of a game that are used: the same limit as for training documents.
std::int64_t limit_of(const RunSetup& setup) {
  const auto asked = setup.options.model.seq_len;
  return std::min(asked > 0 ? asked : TokenLoader::kDefaultDocumentIds, row_positions(setup.config, asked));
}

struct ScoredWords {
  double moves = 0, results = 0;
};

/// Counts the scored words of all games. Each rank spells its share once, so that a tokenizer that cannot spell a game
/// fails before the first step.
ScoredWords count_scored(ProcessGroup& world, const RunSetup& setup, const ChessGames& games) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto limit = static_cast<std::size_t>(limit_of(setup));
  std::array<double, 2> counts{};
  run_agreed(world, [&] {
    for (auto g = to_index(world.rank()); g < games.texts.size(); g += ranks) {
      const auto game = encode_game(*setup.tokenizer.tokenizer, games.texts[g]);
      for (std::size_t w = 0; w < game.words.size(); ++w) {
        if (game.words[w].first > 0 && game.words[w].end <= limit) counts[w < games.moves[g] ? 0 : 1] += 1;
      }
    }
  });
  world.all_reduce(counts, Reduce::sum);
  return {counts[0], counts[1]};
}

/// Hashes games and limits: values of validations with equal hashes can be compared.
std::string identity_of(const ChessGames& games, std::int64_t limit, std::int64_t positions) {
  auto hash = fnv1a(fmt::format("{} {}", limit, positions));
  for (const auto& text : games.texts) hash = fnv1a(fmt::format("{:x} {}", hash, text));
  return fmt::format("games {:016x}", hash);
}

}  // namespace

bool is_chess_metric(const std::string& name) {
  return std::ranges::any_of(kEvalMetrics, [&](const auto& metric) { return metric.of_games && name == metric.key; });
}

void check_game_options(const TrainOptions& options) {
  const auto& games = options.validation.games;
  if (!games.data.empty()) return;
  if (games.most != 0) throw UsageError("--val-chess-games needs --val-chess");
  if (games.positions != ValidationGames().positions) throw UsageError("--val-chess-positions needs --val-chess");
}

void load_validation_games(ProcessGroup& world, RunSetup& setup) {
  const auto& asked = setup.options.validation.games;
  if (asked.data.empty()) return;
  const auto& [name, is_sure, tokenizer] = setup.tokenizer;
  if (tokenizer == nullptr) throw UsageError("--val-chess: no tokenizer is known, give --tokenizer");
  check_vocabulary(*tokenizer, name, setup.config);
  ChessGameStream stream(world, asked.data, setup.options.data_field, asked.most);
  auto loaded = load_games(stream);
  if (loaded.games.texts.empty()) {
    const auto& skipped = loaded.skipped;
    throw FormatError(fmt::format("--val-chess {}: holds no game in UCI notation ('e2e4 e7e5 ...'){}", asked.data,
                                  skipped.count > 0 ? "; the first text: " + skipped.first : ""));
  }
  const auto [moves, results] = count_scored(world, setup, loaded.games);
  const auto limit = limit_of(setup);
  if (moves == 0)
    throw UsageError(
        fmt::format("--val-chess {}: no move of a game lies within {} ids (--seq-len)", asked.data, limit));
  if (results == 0 && setup.deciding.metric == "chess_result") {
    throw UsageError(fmt::format(
        "--keep-best chess_result: none of {}'s {} has a result (1-0, 0-1, 1/2-1/2) at its end that lies within {} ids "
        "(--seq-len)",
        asked.data, format_count_of(std::ssize(loaded.games.texts), "game"), limit));
  }
  setup.games = {std::move(loaded), ""};
  setup.games->identity = identity_of(setup.games->loaded.games, limit, asked.positions);
}

std::optional<ChessEvaluation> play_games(ModelRuntime& runtime, const RunSetup& setup, const Logger& log,
                                          const std::function<bool()>& stopped) {
  if (!setup.games) return std::nullopt;
  ChessOptions how;
  how.positions = setup.options.validation.games.positions;
  how.limit = limit_of(setup);
  how.batch_size = setup.batches.micro_batch_size;
  LoadedGameSource source(setup.games->loaded);
  return evaluate_chess(runtime, *setup.tokenizer.tokenizer, source, how, log, stopped);
}

GameScore game_score(const ChessEvaluation& games, const std::string& metric) {
  if (metric == "chess_legal") return {games.legal.value, games.positions};
  if (metric == "chess_result") return {games.result_accuracy.value, games.results};
  return {games.accuracy.value, games.moves};
}

std::string games_line(std::int64_t step, const ChessEvaluation& games) {
  auto line = fmt::format("chess  {:>6}   next move {:.4f} of {}", step, games.accuracy.value,
                          format_count_of(games.moves, "move"));
  if (games.positions > 0)
    line += fmt::format("   legal {:.4f} of {}", games.legal.value, format_count_of(games.positions, "position"));
  if (games.results > 0) line += fmt::format("   result {:.4f}", games.result_accuracy.value);
  return line + fmt::format("   {:.1f} s", games.seconds);
}

nlohmann::json games_record(std::int64_t step, const ChessEvaluation& games) {
  nlohmann::json record{{"step", step},
                        {"chess_games", games.games},
                        {"chess_moves", games.moves},
                        {"chess_positions", games.positions},
                        {"eval_seconds", games.seconds}};
  for (const auto& metric : kEvalMetrics) {
    const auto [value, count] = game_score(games, metric.key);
    if (metric.of_games && count > 0) record[metric.key] = value;
  }
  return record;
}

}  // namespace fsdp::detail
