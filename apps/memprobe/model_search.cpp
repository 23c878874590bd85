#include "apps/memprobe/model_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lib/base/text_format.hpp"
#include "lib/engine/runtime/model_text.hpp"

namespace fsdp::detail {
namespace {

/// The fewest elements that the others repeat.
std::size_t period_of(const std::vector<bool>& pattern) {
  for (std::size_t period = 1; period < pattern.size(); ++period) {
    bool repeats = true;
    for (std::size_t i = period; i < pattern.size() && repeats; ++i) repeats = pattern[i] == pattern[i - period];
    if (repeats) return period;
  }
  return pattern.size();
}

std::int64_t budget_of(const MemoryBudget& budget) { return budget.gpu ? budget.gpu->total_bytes : budget.host_bytes; }

std::string bytes_text(std::int64_t n) { return format_bytes(static_cast<double>(n)); }

nlohmann::json model_json(const ModelAnswer& a, const MemoryBudget& budget) {
  const auto& c = a.combination;
  return {{"sharding", to_string(c.sharding)},
          {"activation_checkpointing", c.checkpointing()},
          {"precision", float_type_name(c.precision)},
          {"ranks", c.ranks},
          {"ranks_per_node", c.ranks_per_node},
          {"fits", a.layers > 0},
          {"largest_layers", a.layers},
          {"largest_parameters", a.parameters},
          {"search_ended", a.layers == kMostLayers},
          {"needed_bytes", needed_bytes(a.prediction)},
          {"budget_bytes", budget_of(budget)},
          {"margin_bytes", budget.margin_bytes},
          {"peak_moment", a.prediction.profile.phase}};
}

}  // namespace

ModelConfig with_layers(ModelConfig config, std::int64_t layers) {
  config.num_layers = layers;
  auto& sliding = config.traits.sliding;
  if (sliding.empty()) return config;
  const auto period = period_of(sliding);
  std::vector<bool> pattern;
  for (std::size_t i = 0; i < static_cast<std::size_t>(layers); ++i)
    pattern.push_back(i < sliding.size() ? sliding[i] : sliding[i % period]);
  sliding = pattern;
  return config;
}

ModelAnswer search_model(const Combination& combination, const ModelConfig& config, const MemoryBudget& budget,
                         const std::function<MemoryPrediction(const ModelConfig&)>& predict) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(kMostLayers));
  std::iota(counts.begin(), counts.end(), 1);
  const auto of = [&](std::int64_t layers) { return predict(with_layers(config, layers)); };
  // Memory grows by nearly the same for each layer; the first ones are few enough for units to be gathered all at once.
  const std::vector<std::int64_t> first{4, 6};
  const auto guess = guess_largest(first, [&](std::int64_t layers) { return headroom(of(layers), budget); });
  ModelAnswer answer;
  answer.combination = combination;
  answer.layers =
      largest_that_fits(counts, guess, [&](std::int64_t layers) { return fits_budget(of(layers), budget); });
  answer.prediction = of(std::max<std::int64_t>(1, answer.layers));
  if (answer.layers > 0) answer.parameters = num_parameters(parameter_table(with_layers(config, answer.layers)));
  return answer;
}

std::string describe_models(const std::vector<ModelAnswer>& answers, const MemoryBudget& budget) {
  auto text = fmt::format("{:>6} {:<18} {:<10} {:<9} {:>8} {:>12} {:>12} {:>7}  {}\n", "ranks", "sharding", "recompute",
                          "precision", "layers", "parameters", "memory", "of all", "peak at");
  for (const auto& a : answers) {
    const auto& c = a.combination;
    const auto needed = needed_bytes(a.prediction);
    text += fmt::format("{:>6} {:<18} {:<10} {:<9} {:>8} {:>12} {:>12} {:>6.1f}%  {}\n", c.ranks, to_string(c.sharding),
                        c.checkpointing(), float_type_name(c.precision),
                        a.layers == kMostLayers ? fmt::format("{}+", a.layers) : std::to_string(a.layers),
                        fmt::format("{:.1f} M", static_cast<double>(a.parameters) / 1e6), bytes_text(needed),
                        100.0 * static_cast<double>(needed) / static_cast<double>(budget_of(budget)),
                        a.layers > 0 ? a.prediction.profile.phase : "not even one layer fits");
  }
  return text;
}

nlohmann::json models_json(const std::vector<ModelAnswer>& answers, const MemoryBudget& budget) {
  const auto best = std::ranges::max_element(answers, {}, &ModelAnswer::layers);
  auto json = model_json(*best, budget);
  json["combinations"] = nlohmann::json::array();
  for (const auto& answer : answers) json["combinations"].push_back(model_json(answer, budget));
  return json;
}

void check_model_search(const MemprobeOptions& options) {
  if (options.measure) throw UsageError("--search model predicts: it goes without --measure");
  if (!options.plot_file.empty()) throw UsageError("--plot draws one model's memory: it goes without --search model");
}

}  // namespace fsdp::detail
