#include "lib/jobs/finetune/validation_games.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"
#include "lib/eval/chess/games.hpp"
#include "lib/eval/chess/sequence.hpp"
#include "lib/runtime/text.hpp"

namespace fsdp::detail {
namespace {

constexpr std::array<const char*, 3> kMetrics{"chess_accuracy", "chess_legal", "chess_result"};

/// Ids of a game that are seen: as many as of a document that is trained on.
std::int64_t limit_of(const RunSetup& setup) {
  const auto asked = setup.options.model.seq_len;
  return std::min(asked > 0 ? asked : TokenLoader::kDefaultDocumentIds, setup.config.block_size);
}

}  // namespace

bool is_chess_metric(const std::string& name) {
  return std::find(kMetrics.begin(), kMetrics.end(), name) != kMetrics.end();
}

void check_game_options(const TrainOptions& options) {
  const auto& games = options.validation.games;
  for (const auto& [count, option] :
       {std::pair(games.most, "--val-chess-games"), std::pair(games.positions, "--val-chess-positions")}) {
    if (count < 0) throw UsageError(fmt::format("{} is {}, it must not be negative", option, count));
  }
  if (games.most > 0 && games.data.empty()) throw UsageError("--val-chess-games needs --val-chess");
}

void check_games(ProcessGroup& world, const RunSetup& setup) {
  const auto& games = setup.options.validation.games;
  if (games.data.empty()) return;
  const auto& [name, is_sure, tokenizer] = setup.tokenizer;
  if (tokenizer == nullptr) throw UsageError("--val-chess: no tokenizer is known, give --tokenizer");
  check_vocabulary(*tokenizer, name, setup.config);
  const bool need_results = setup.deciding.metric == "chess_result";
  ChessGameStream stream(world, games.data, setup.options.data_field, games.most);
  std::int64_t found = 0;
  bool has_result = !need_results;
  for (;;) {
    constexpr std::size_t kAtOnce = 256;
    const auto read = stream.next(kAtOnce);
    if (read.texts.empty()) break;
    if (found == 0) (void)encode_game(*tokenizer, read.texts.front());
    found += static_cast<std::int64_t>(read.texts.size());
    for (std::size_t g = 0; g < read.texts.size(); ++g) {
      const auto words = static_cast<std::size_t>(std::ranges::count(read.texts[g], ' ')) + 1;
      has_result = has_result || words > read.moves[g];
    }
    if (has_result) return;
  }
  const auto& skipped = stream.skipped();
  if (found == 0) {
    throw FormatError(fmt::format("--val-chess {}: holds no game in UCI notation ('e2e4 e7e5 ...'){}", games.data,
                                  skipped.count > 0 ? "; the first text: " + skipped.first : ""));
  }
  throw UsageError(fmt::format("--keep-best chess_result: none of {}'s {} ends with a result (1-0, 0-1, 1/2-1/2)",
                               games.data, format_count_of(found, "game")));
}

std::optional<ChessEvaluation> play_games(ModelRuntime& runtime, const RunSetup& setup, const Logger& log,
                                          const std::function<bool()>& stopped) {
  const auto& games = setup.options.validation.games;
  if (games.data.empty()) return std::nullopt;
  ChessOptions how;
  how.data = games.data;
  how.field = setup.options.data_field;
  how.max_games = games.most;
  how.positions = games.positions;
  how.limit = limit_of(setup);
  how.batch_size = setup.batches.micro_batch_size;
  return evaluate_chess(runtime, *setup.tokenizer.tokenizer, how, log, stopped);
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
  for (const char* metric : kMetrics) {
    const auto [value, count] = game_score(games, metric);
    if (count > 0) record[metric] = value;
  }
  return record;
}

}  // namespace fsdp::detail
