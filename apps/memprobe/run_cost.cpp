#include "apps/memprobe/run_cost.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/base/text/text_format.hpp"

namespace fsdp::detail {
namespace {

constexpr double kSecondsPerHour = 3600;

bool length_is_known(const MemprobeOptions& options) { return options.run_tokens > 0 || options.train.max_steps > 0; }

/// Three digits, or all before the point.
std::string number(double x) { return x < 100 ? fmt::format("{:.3g}", x) : format_count(static_cast<std::int64_t>(x)); }

/// "12.7 h", "1.7 min", "12 s"
std::string duration(double hours) {
  constexpr double kMinutes = 60;
  if (hours >= 1) return number(hours) + " h";
  if (hours * kMinutes >= 1) return number(hours * kMinutes) + " min";
  return number(hours * kSecondsPerHour) + " s";
}

}  // namespace

double paid_hours(double hours, int ranks, int ranks_per_node, bool of_gpus) {
  return hours * (of_gpus ? ranks : (ranks + ranks_per_node - 1) / ranks_per_node);
}

std::optional<RunCost> run_cost(const Combination& combination, const std::optional<StepSpeed>& speed,
                                const MemprobeOptions& options, const MemoryBudget& budget) {
  if (!speed || !length_is_known(options)) return std::nullopt;
  RunCost cost;
  cost.tokens =
      options.run_tokens > 0 ? options.run_tokens : speed->tokens * static_cast<double>(options.train.max_steps);
  cost.hours = cost.tokens / speed->tokens_per_second / kSecondsPerHour;
  cost.of_gpus = budget.gpu.has_value();
  cost.paid_hours = paid_hours(cost.hours, combination.ranks, combination.ranks_per_node, cost.of_gpus);
  cost.price = cost.paid_hours * options.price;
  return cost;
}

std::string describe_cost(const RunCost& cost, const MemprobeOptions& options) {
  auto text =
      fmt::format("{}, {} {}-hours", duration(cost.hours), number(cost.paid_hours), cost.of_gpus ? "GPU" : "node");
  if (options.price > 0) text += fmt::format(", price {} at {:g} an hour", number(cost.price), options.price);
  return text + fmt::format(", for {} tokens", format_count(static_cast<std::int64_t>(cost.tokens)));
}

nlohmann::json to_json(const RunCost& cost) {
  nlohmann::json json{{"tokens", cost.tokens}, {"hours", cost.hours}};
  json[cost.of_gpus ? "gpu_hours" : "node_hours"] = cost.paid_hours;
  if (cost.price > 0) json["price"] = cost.price;
  return json;
}

std::string cost_head(const MemprobeOptions& options, const MemoryBudget& budget) {
  if (!length_is_known(options)) return "";
  auto text = fmt::format(" {:>8} {:>8}", "hours", budget.gpu ? "GPU-h" : "node-h");
  if (options.price > 0) text += fmt::format(" {:>9}", "price");
  return text;
}

std::string cost_columns(const std::optional<RunCost>& cost, const MemprobeOptions& options) {
  if (!length_is_known(options)) return "";
  auto text = fmt::format(" {:>8} {:>8}", cost ? number(cost->hours) : "-", cost ? number(cost->paid_hours) : "-");
  if (options.price > 0) text += fmt::format(" {:>9}", cost ? number(cost->price) : "-");
  return text;
}

}  // namespace fsdp::detail
