#include "apps/eval/result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <set>

#include "lib/base/text/text_format.hpp"
#include "lib/benchmarks/results/markdown_table.hpp"
#include "lib/training/evaluate/written_text.hpp"

namespace fsdp {
namespace {

using nlohmann::json;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

json to_json(const Interval& interval) { return {interval.low, interval.high}; }

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(part) / static_cast<double>(whole);
}

/// Returns "   (95 %: 0.1 to 0.2)"; empty when there is no interval.
std::string shown(const Interval& interval, const char* format) {
  if (std::isnan(interval.low)) return {};
  return fmt::format("   (95 %: {} to {})", fmt::format(fmt::runtime(format), interval.low),
                     fmt::format(fmt::runtime(format), interval.high));
}

std::int64_t total(const std::vector<double>& values) {
  return static_cast<std::int64_t>(std::accumulate(values.begin(), values.end(), 0.0));
}

Interval perplexity_interval(const LossResult& result) {
  const auto loss = result.loss.interval(0, kInfinity);
  return {std::exp(loss.low), std::exp(loss.high)};
}

}  // namespace

LossResult loss_result(const RowScores& scores) {
  LossResult result;
  result.loss = ratio(scores.nats, scores.tokens);
  const double perplexity = std::exp(result.loss.value);
  result.perplexity = mapped(result.loss, perplexity, perplexity);
  result.tokens = total(scores.tokens);
  result.rows = std::ssize(scores.nats);
  result.bytes = total(scores.bytes);
  if (result.bytes > 0) {
    const auto nats_per_byte = ratio(scores.nats, scores.bytes);
    result.bits_per_byte = mapped(nats_per_byte, nats_per_byte.value / std::numbers::ln2, 1 / std::numbers::ln2);
  }
  return result;
}

PreferenceResult preference_result(std::span<const double> log_probs, std::span<const double> reference, double beta) {
  PreferenceResult result;
  std::vector<double> right, margins;
  for (std::size_t i = 0; i + 1 < log_probs.size(); i += 2) {
    const auto reward = [&](std::size_t side) {
      return beta * (log_probs[side] - (reference.empty() ? 0 : reference[side]));
    };
    const double chosen = reward(i), rejected = reward(i + 1);
    right.push_back(chosen > rejected ? 1 : 0);
    result.right += chosen > rejected ? '1' : '0';
    margins.push_back(chosen - rejected);
    result.chosen_reward += chosen;
    result.rejected_reward += rejected;
    result.chosen_logps += log_probs[i];
    result.rejected_logps += log_probs[i + 1];
  }
  const std::vector<double> ones(right.size(), 1.0);
  result.accuracy = ratio(right, ones);
  result.margin = ratio(margins, ones);
  const auto count = static_cast<double>(right.size());
  for (auto* sum : {&result.chosen_reward, &result.rejected_reward, &result.chosen_logps, &result.rejected_logps})
    *sum /= count;
  return result;
}

void add_to_json(const PreferenceResult& result, json& report) {
  report["preferences"] = result.right.size();
  report["reward_accuracy"] = result.accuracy.value;
  report["reward_accuracy_interval"] = to_json(result.accuracy.interval(0, 1));
  report["reward_margin"] = result.margin.value;
  report["reward_margin_interval"] = to_json(result.margin.interval(-kInfinity, kInfinity));
  report["reward_chosen"] = result.chosen_reward;
  report["reward_rejected"] = result.rejected_reward;
  if (result.has_log_probs) {
    report["logps_chosen"] = result.chosen_logps;
    report["logps_rejected"] = result.rejected_logps;
  }
  report["seconds"] = result.seconds;
}

std::vector<std::string> to_text(const PreferenceResult& result) {
  const auto accuracy = result.accuracy.interval(0, 1), margin = result.margin.interval(-kInfinity, kInfinity);
  std::vector<std::string> lines{
      fmt::format("accuracy  {:.2f} %   95 % within {:.2f} to {:.2f}   {} in {:.1f} s", 100 * result.accuracy.value,
                  100 * accuracy.low, 100 * accuracy.high, format_count_of(std::ssize(result.right), "preference"),
                  result.seconds),
      fmt::format("margin    {:.4f}   95 % within {:.4f} to {:.4f}   rewards {:.4f} and {:.4f}", result.margin.value,
                  margin.low, margin.high, result.chosen_reward, result.rejected_reward)};
  if (result.has_log_probs)
    lines.push_back(
        fmt::format("logps     {:.4f} chosen, {:.4f} rejected", result.chosen_logps, result.rejected_logps));
  return lines;
}

void add_metrics(const PreferenceResult& result, std::vector<Metric>& metrics) {
  metrics.push_back({"reward_accuracy", true, result.accuracy, result.right});
  metrics.push_back({"reward_margin", true, result.margin});
}

void add_to_json(const LossResult& result, json& report) {
  report["loss"] = result.loss.value;
  report["loss_standard_error"] = result.loss.standard_error();
  report["loss_interval"] = to_json(result.loss.interval(0, kInfinity));
  report["perplexity"] = result.perplexity.value;
  report["perplexity_interval"] = to_json(perplexity_interval(result));
  report["tokens"] = result.tokens;
  report["rows"] = result.rows;
  report["ids_not_scored"] = result.ids_not_scored;
  report["seconds"] = result.seconds;
  if (result.bytes == 0) return;
  report["bytes"] = result.bytes;
  report["bits_per_byte"] = result.bits_per_byte.value;
  report["bits_per_byte_standard_error"] = result.bits_per_byte.standard_error();
  report["bits_per_byte_interval"] = to_json(result.bits_per_byte.interval(0, kInfinity));
}

void add_to_json(const ChessEvaluation& r, json& report) {
  auto mistakes = json::array();
  for (const auto& mistake : r.mistakes) {
    mistakes.push_back({{"game", mistake.game}, {"wrote", json_text(mistake.wrote)}, {"problem", mistake.problem}});
  }
  json& chess = report["chess"];
  chess = {{"games", r.games},
           {"games_skipped", r.skipped.count},
           {"moves", r.moves},
           {"moves_right", r.moves_right},
           {"moves_not_scored", r.moves_not_scored},
           {"games_cut", r.games_cut},
           {"accuracy", r.accuracy.value},
           {"accuracy_standard_error", r.accuracy.standard_error()},
           {"accuracy_interval", to_json(r.accuracy.interval(0, 1))},
           {"positions", r.positions},
           {"positions_generated", r.positions_generated},
           {"legal", share(r.positions_legal, r.positions)},
           {"legal_interval", to_json(wilson_interval(r.positions_legal, r.positions))},
           {"not_a_move", r.not_a_move},
           {"illegal", r.illegal},
           {"mistakes", mistakes},
           {"results", r.results},
           {"seconds", r.seconds}};
  if (r.skipped.count > 0) chess["first_skipped"] = r.skipped.first;
  if (r.results > 0) {
    chess["results_right"] = r.results_right;
    chess["result_accuracy"] = r.result_accuracy.value;
    chess["result_accuracy_interval"] = to_json(wilson_interval(r.results_right, r.results));
  }
}

std::vector<std::string> to_text(const LossResult& r) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("loss {:.6f}   perplexity {:.3f}   {} in {}   {} tok/s", r.loss.value, r.perplexity.value,
                              format_count_of(r.tokens, "token"), format_count_of(r.rows, "row"),
                              format_count(static_cast<std::int64_t>(static_cast<double>(r.tokens) / r.seconds))));
  const auto interval = r.loss.interval(0, kInfinity);
  if (!std::isnan(interval.low)) {
    const auto perplexity = perplexity_interval(r);
    lines.push_back(fmt::format("     95 %: {:.6f} to {:.6f}   perplexity {:.3f} to {:.3f}   standard error {:.3g}",
                                interval.low, interval.high, perplexity.low, perplexity.high, r.loss.standard_error()));
  }
  if (r.bytes > 0) {
    lines.push_back(fmt::format("     {:.6f} bits per byte{}   {} bytes", r.bits_per_byte.value,
                                shown(r.bits_per_byte.interval(0, kInfinity), "{:.4f}"), format_count(r.bytes)));
  }
  if (r.ids_not_scored > 0) {
    lines.push_back(fmt::format(
        "     {} ids lie beyond the longest sequence (--seq-len), or fill no row, and are not in these figures",
        format_count(r.ids_not_scored)));
  }
  return lines;
}

std::vector<std::string> to_text(const ChessEvaluation& r) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("chess next move {:.4f}{}   {} of {} in {}   {:.1f} s", r.accuracy.value,
                              shown(r.accuracy.interval(0, 1), "{:.4f}"), format_count(r.moves_right),
                              format_count_of(r.moves, "move"), format_count_of(r.games, "game"), r.seconds));
  if (r.positions > 0) {
    lines.push_back(fmt::format(
        "      legal     {:.4f}{}   {} of {}; {} illegal, {} no move", share(r.positions_legal, r.positions),
        shown(wilson_interval(r.positions_legal, r.positions), "{:.4f}"), format_count(r.positions_legal),
        format_count_of(r.positions, "position"), r.illegal, r.not_a_move));
  }
  if (r.results > 0) {
    lines.push_back(fmt::format("      result    {:.4f}{}   {} of {}", r.result_accuracy.value,
                                shown(wilson_interval(r.results_right, r.results), "{:.4f}"),
                                format_count(r.results_right), format_count_of(r.results, "game")));
  }
  if (!r.mistakes.empty()) lines.push_back("      first mistake: " + r.mistakes.front().problem);
  if (r.moves_not_scored > 0) {
    lines.push_back(fmt::format("      {} of {} lie beyond the longest sequence and are not scored",
                                format_count_of(r.moves_not_scored, "move"), format_count_of(r.games_cut, "game")));
  }
  if (r.skipped.count > 0) {
    lines.push_back(fmt::format("      {} no legal game and left out; the first: {}",
                                r.skipped.count == 1 ? "1 text is" : format_count(r.skipped.count) + " texts are",
                                r.skipped.first));
  }
  return lines;
}

void add_task_of_games(const ChessEvaluation& r, json& report) {
  json& task = report["results"]["chess"];
  task = {{"name", "chess"}, {"alias", "chess"}, {"sample_len", r.games}};
  const auto add = [&](const char* metric, const Estimate& estimate) {
    const auto error = estimate.standard_error();
    task[fmt::format("{},none", metric)] = estimate.value;
    task[fmt::format("{}_stderr,none", metric)] = std::isnan(error) ? json("N/A") : json(error);
    report["higher_is_better"]["chess"][metric] = true;
  };
  add("accuracy", r.accuracy);
  if (r.positions > 0) add("legal", r.legal);
  if (r.results > 0) add("result", r.result_accuracy);
}

std::vector<std::string> to_text(const Comparison& comparison, bool markdown) {
  const auto rows = comparison_rows(comparison);
  std::vector<std::string> lines;
  if (markdown) {
    std::set<std::size_t> numbers;
    for (std::size_t i = 1; i < rows.front().size(); ++i) numbers.insert(i);
    lines = markdown_table(rows, numbers);
    lines.emplace_back();
  } else {
    std::vector<std::size_t> widths(rows.front().size());
    for (const auto& row : rows) {
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    for (const auto& row : rows) {
      auto line = fmt::format("{:<{}}", row.front(), widths.front());
      for (std::size_t i = 1; i < row.size(); ++i) line += fmt::format("   {:>{}}", row[i], widths[i]);
      lines.push_back(std::move(line));
    }
  }
  for (auto& line : gate_lines(comparison)) lines.push_back(std::move(line));
  return lines;
}

void add_metrics(const LossResult& result, std::vector<Metric>& metrics) {
  metrics.push_back({"loss", false, result.loss});
  metrics.push_back({"perplexity", false, result.perplexity});
  if (result.bytes > 0) metrics.push_back({"bits_per_byte", false, result.bits_per_byte});
}

void add_metrics(const ChessEvaluation& result, std::vector<Metric>& metrics) {
  metrics.push_back({"chess_accuracy", true, result.accuracy});
  if (result.positions > 0) metrics.push_back({"chess_legal", true, result.legal});
  if (result.results > 0) metrics.push_back({"chess_result", true, result.result_accuracy});
}

}  // namespace fsdp
