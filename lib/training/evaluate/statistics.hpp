#pragma once
// Figures with their uncertainty: ratios of sums over sequences, and how far two of them are apart.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

/// 95 % of a normal distribution lie within this many standard errors.
constexpr double kNormalQuantile = 1.959963984540054;

/// A range that holds the figure with 95 % confidence.
struct Interval {
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::quiet_NaN();
};

/// A figure over units that are drawn independently: sequences, games, positions. What lies inside a unit (the tokens
/// of a sequence, the moves of a game) hangs together, so the unit is what is counted.
struct Estimate {
  double value = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> influence;  ///< by unit: what its presence adds to `value`, to first order
  std::int64_t units = 0;         ///< that count; the others have no influence

  /// NaN for fewer than 2 units.
  double standard_error() const;
  /// value +- 1.96 standard errors, cut to [lowest, highest].
  Interval interval(double lowest, double highest) const;
};

/// sum(numerators) / sum(denominators), summed in the units' order; a unit whose denominator is 0 does not count.
/// Source: the linearised variance of a ratio estimator, Cochran, Sampling Techniques, 3rd ed., section 2.11.
Estimate ratio(std::span<const double> numerators, std::span<const double> denominators);

/// f(estimate) by its value and slope there (the delta method).
Estimate mapped(const Estimate& estimate, double value, double slope);

/// Standard error of b - a, paired by unit where both have the same ones: what is hard for both cancels.
double standard_error_of_difference(const Estimate& a, const Estimate& b);

/// Wilson's interval of a proportion: sound for few trials and for proportions near 0 and 1.
Interval wilson_interval(std::int64_t successes, std::int64_t trials);

// Whether one checkpoint is worse than another, by more than is allowed.

/// A figure of an evaluation by which checkpoints can be compared.
struct Metric {
  std::string name;
  bool higher_is_better = false;
  Estimate estimate;
  std::string right = {};  ///< of a share of right answers: '1' or '0' by unit; else empty
};

/// The amount by which B may be worse than A: "loss:0.01", "perplexity:1%", "chess_accuracy:0.02".
struct Gate {
  std::string text;
  std::string metric;
  double limit = 0;       ///< in the metric's unit, or as a share of A's value; negative: B must be better by that much
  bool relative = false;  ///< limit is a share

  /// The metric is a benchmark's: "hellaswag.acc_norm", "gsm8k.exact_match,strict-match".
  bool is_of_task() const { return metric.find('.') != std::string::npos; }
};

/// \throws RequestError naming the metrics and the form
Gate parse_gate(const std::string& text, std::string_view option = "gate");

/// McNemar's exact test of two checkpoints on the same questions: those that one of them alone has right are
/// distributed as throws of a coin where both are equally good.
/// Source: McNemar, Psychometrika 12 (1947); the exact form is the two-sided sign test.
struct DiscordantPairs {
  std::int64_t only_a = 0, only_b = 0;  ///< questions that A alone, and B alone, has right
  double p = 1;                         ///< probability of counts at least as far apart
};
DiscordantPairs mcnemar(std::int64_t only_a, std::int64_t only_b);

/// One figure of both.
struct MetricComparison {
  std::string metric;
  double a = 0, b = 0;
  double difference = 0;  ///< b - a
  double standard_error = 0;
  Interval interval;                     ///< of the difference
  double worsening = 0;                  ///< the difference with the sign that makes it positive where B is worse
  std::optional<DiscordantPairs> pairs;  ///< of a share of right answers to the same questions
};

struct GateVerdict {
  Gate gate;
  double allowed = 0;    ///< worsening
  double worsening = 0;  ///< NaN where a metric could not be computed
  bool passed = false;   ///< worsening <= allowed; never with NaN
};

struct Comparison {
  std::vector<MetricComparison> metrics;
  std::vector<GateVerdict> gates;
  bool passed() const;
};

/// \param a, b  the same metrics in the same order, as far as both could be computed
Comparison compare(const std::vector<Metric>& a, const std::vector<Metric>& b, const std::vector<Gate>& gates);

nlohmann::json comparison_to_json(const Comparison& comparison);
/// A table for people: a row of titles, then one for each metric.
std::vector<std::vector<std::string>> comparison_rows(const Comparison& comparison);
/// A line for people for each gate.
std::vector<std::string> gate_lines(const Comparison& comparison);

}  // namespace fsdp
