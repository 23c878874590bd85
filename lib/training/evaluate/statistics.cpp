#include "lib/training/evaluate/statistics.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <stdexcept>
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

double spread(double squares, std::int64_t units) {
  if (units < 2) return std::numeric_limits<double>::quiet_NaN();
  const auto n = static_cast<double>(units);
  return std::sqrt(n / (n - 1) * squares);
}

constexpr std::array kMetrics{"loss",         "perplexity",      "bits_per_byte", "chess_accuracy", "chess_legal",
                              "chess_result", "reward_accuracy", "reward_margin", "label_accuracy", "label_loss"};

MetricComparison compare_metric(const Metric& a, const Metric& b) {
  MetricComparison result;
  result.metric = a.name;
  result.a = a.estimate.value;
  result.b = b.estimate.value;
  result.difference = result.b - result.a;
  result.standard_error = standard_error_of_difference(a.estimate, b.estimate);
  const double reach = kNormalQuantile * result.standard_error;
  result.interval = {result.difference - reach, result.difference + reach};
  result.worsening = a.higher_is_better ? result.a - result.b : result.difference;
  if (!a.right.empty() && a.right.size() == b.right.size()) {
    std::int64_t only_a = 0, only_b = 0;
    for (std::size_t i = 0; i < a.right.size(); ++i) {
      only_a += a.right[i] > b.right[i] ? 1 : 0;
      only_b += b.right[i] > a.right[i] ? 1 : 0;
    }
    result.pairs = mcnemar(only_a, only_b);
  }
  return result;
}

GateVerdict judge(const Gate& gate, const std::vector<MetricComparison>& metrics) {
  GateVerdict verdict{gate, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN(), false};
  const auto metric = std::ranges::find(metrics, gate.metric, &MetricComparison::metric);
  if (metric == metrics.end()) return verdict;
  verdict.allowed = gate.relative ? gate.limit * std::abs(metric->a) : gate.limit;
  verdict.worsening = metric->worsening;
  verdict.passed = verdict.worsening <= verdict.allowed;  // false with NaN
  return verdict;
}

std::string explained(const GateVerdict& g) {
  if (std::isnan(g.worsening)) return "could not be computed";
  const auto found =
      g.worsening == 0 ? std::string("A and B are equal")
                       : fmt::format("B is {} by {:.4g}", g.worsening > 0 ? "worse" : "better", std::abs(g.worsening));
  return fmt::format("{}, {} by {:.4g}", found, g.allowed < 0 ? "has to be better" : "may be worse",
                     std::abs(g.allowed));
}

}  // namespace

double Estimate::standard_error() const {
  double squares = 0;
  for (const double part : influence) squares += part * part;
  return spread(squares, units);
}

Interval Estimate::interval(double lowest, double highest) const {
  const double reach = kNormalQuantile * standard_error();
  if (std::isnan(value) || std::isnan(reach)) return {};
  return {std::max(lowest, value - reach), std::min(highest, value + reach)};
}

Estimate ratio(std::span<const double> numerators, std::span<const double> denominators) {
  if (numerators.size() != denominators.size()) throw std::logic_error("a ratio of sums over different units");
  double above = 0, below = 0;
  Estimate result;
  for (std::size_t i = 0; i < numerators.size(); ++i) {
    above += numerators[i];
    below += denominators[i];
    if (denominators[i] != 0) ++result.units;
  }
  if (below == 0) return result;
  result.value = above / below;
  result.influence.resize(numerators.size());
  for (std::size_t i = 0; i < numerators.size(); ++i) {
    result.influence[i] = (numerators[i] - result.value * denominators[i]) / below;
  }
  return result;
}

Estimate mapped(const Estimate& estimate, double value, double slope) {
  auto result = estimate;
  result.value = value;
  for (double& part : result.influence) part *= slope;
  return result;
}

double standard_error_of_difference(const Estimate& a, const Estimate& b) {
  if (a.influence.size() != b.influence.size()) return std::hypot(a.standard_error(), b.standard_error());
  double squares = 0;
  for (std::size_t i = 0; i < a.influence.size(); ++i) {
    const double part = b.influence[i] - a.influence[i];
    squares += part * part;
  }
  return spread(squares, std::max(a.units, b.units));
}

Interval wilson_interval(std::int64_t successes, std::int64_t trials) {
  if (trials == 0) return {};
  const auto n = static_cast<double>(trials);
  const double p = static_cast<double>(successes) / n;
  const double z2 = kNormalQuantile * kNormalQuantile;
  const double center = (p + z2 / (2 * n)) / (1 + z2 / n);
  const double reach = kNormalQuantile / (1 + z2 / n) * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  return {std::max(0.0, center - reach), std::min(1.0, center + reach)};
}

DiscordantPairs mcnemar(std::int64_t only_a, std::int64_t only_b) {
  const auto n = static_cast<double>(only_a + only_b);
  const auto log_choose = [&](double k) { return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1); };
  double tail = 0;
  for (std::int64_t k = 0; k <= std::min(only_a, only_b); ++k)
    tail += std::exp(log_choose(static_cast<double>(k)) - n * std::numbers::ln2);
  return {only_a, only_b, std::min(1.0, 2 * tail)};
}

Gate parse_gate(const std::string& text, std::string_view option) {
  const auto colon = text.rfind(':');
  Gate gate{text, text.substr(0, colon), 0, false};
  auto number = colon == std::string::npos ? std::string() : text.substr(colon + 1);
  gate.relative = number.ends_with('%');
  if (gate.relative) number.pop_back();
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), gate.limit);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == number.data() + number.size();
  const bool known = std::ranges::find(kMetrics, gate.metric) != kMetrics.end() || gate.is_of_task();
  if (!known || !whole || !std::isfinite(gate.limit)) {
    throw RequestError(
        fmt::format("{} is '{}', give METRIC:LIMIT, such as loss:0.01 or loss:1%; METRIC is TASK.METRIC or one of {}",
                    option, text, fmt::join(kMetrics, ", ")));
  }
  if (gate.relative) gate.limit /= 100;
  return gate;
}

bool Comparison::passed() const { return std::ranges::all_of(gates, &GateVerdict::passed); }

Comparison compare(const std::vector<Metric>& a, const std::vector<Metric>& b, const std::vector<Gate>& gates) {
  Comparison result;
  for (const auto& of_a : a) {
    const auto of_b = std::ranges::find(b, of_a.name, &Metric::name);
    if (of_b != b.end()) result.metrics.push_back(compare_metric(of_a, *of_b));
  }
  for (const auto& gate : gates) result.gates.push_back(judge(gate, result.metrics));
  return result;
}

nlohmann::json comparison_to_json(const Comparison& comparison) {
  auto metrics = nlohmann::json::object();
  for (const auto& m : comparison.metrics) {
    metrics[m.metric] = {{"a", m.a},
                         {"b", m.b},
                         {"difference", m.difference},
                         {"standard_error", m.standard_error},
                         {"interval", {m.interval.low, m.interval.high}},
                         {"worsening", m.worsening}};
    if (m.pairs)
      metrics[m.metric]["mcnemar"] = {{"only_a", m.pairs->only_a}, {"only_b", m.pairs->only_b}, {"p", m.pairs->p}};
  }
  auto gates = nlohmann::json::array();
  for (const auto& g : comparison.gates) {
    gates.push_back({{"gate", g.gate.text},
                     {"metric", g.gate.metric},
                     {"allowed", g.allowed},
                     {"worsening", g.worsening},
                     {"passed", g.passed}});
  }
  return {{"metrics", metrics}, {"gates", gates}, {"passed", comparison.passed()}};
}

std::vector<std::vector<std::string>> comparison_rows(const Comparison& comparison) {
  std::vector<std::vector<std::string>> rows{{"metric", "A", "B", "B - A", "std. error", "95 % of B - A"}};
  const bool has_pairs = std::ranges::any_of(comparison.metrics, [](const auto& m) { return m.pairs.has_value(); });
  if (has_pairs) rows.front().insert(rows.front().end(), {"only A right", "only B", "p (McNemar)"});
  for (const auto& m : comparison.metrics) {
    auto& row = rows.emplace_back();
    row = {m.metric,
           fmt::format("{:.6g}", m.a),
           fmt::format("{:.6g}", m.b),
           fmt::format("{:+.4g}", m.difference),
           fmt::format("{:.3g}", m.standard_error),
           fmt::format("{:+.4g} to {:+.4g}", m.interval.low, m.interval.high)};
    if (m.pairs) {
      row.insert(row.end(), {fmt::format("{}", m.pairs->only_a), fmt::format("{}", m.pairs->only_b),
                             fmt::format("{:.3g}", m.pairs->p)});
    }
    row.resize(rows.front().size());
  }
  return rows;
}

std::vector<std::string> gate_lines(const Comparison& comparison) {
  std::vector<std::string> lines;
  for (const auto& g : comparison.gates) {
    const auto why = explained(g);
    lines.push_back(fmt::format("gate {:<22}{}   {}", g.gate.text, g.passed ? "passed" : "FAILED", why));
  }
  return lines;
}

}  // namespace fsdp
