#pragma once
// Whether one checkpoint is worse than another, by more than is allowed.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/training/evaluate/statistics.hpp"

namespace fsdp {

/// A figure of an evaluation by which checkpoints can be compared.
struct Metric {
  std::string name;
  bool higher_is_better = false;
  Estimate estimate;
};

/// By how much B may be worse than A: "loss:0.01", "perplexity:1%", "chess_accuracy:0.02".
struct Gate {
  std::string text;
  std::string metric;
  double limit = 0;       ///< in the metric's unit, or as a share of A's value; negative: B must be better by that much
  bool relative = false;  ///< limit is a share
};

/// \throws UsageError naming the metrics and the form
Gate parse_gate(const std::string& text);

/// One figure of both.
struct MetricComparison {
  std::string metric;
  double a = 0, b = 0;
  double difference = 0;  ///< b - a
  double standard_error = 0;
  Interval interval;     ///< of the difference
  double worsening = 0;  ///< the difference with the sign that makes it positive where B is worse
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
/// Lines for people: the table, then the gates.
std::vector<std::string> comparison_to_text(const Comparison& comparison);

}  // namespace fsdp
