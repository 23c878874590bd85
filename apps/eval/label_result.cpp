#include "apps/eval/label_result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kBins = 15;
constexpr std::size_t kShown = 20;  ///< labels in text; JSON has all

double ratio_of(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// The area under the ROC curve, by ranks: equal scores count by half (Mann and Whitney). NaN where a score is, or
/// where all texts are on one side.
double area_under_curve(const std::vector<double>& scores, const std::vector<bool>& is_positive) {
  if (std::ranges::any_of(scores, [](double score) { return std::isnan(score); })) return kNaN;
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return scores[i]; });
  double ranks = 0;
  std::int64_t positives = 0;
  for (std::size_t begin = 0; begin < order.size();) {
    auto end = begin;
    while (end < order.size() && scores[order[end]] == scores[order[begin]]) ++end;
    const double rank = static_cast<double>(begin + end + 1) / 2;  // the mean of begin + 1, ..., end
    for (auto i = begin; i < end; ++i) {
      if (!is_positive[order[i]]) continue;
      ranks += rank;
      ++positives;
    }
    begin = end;
  }
  const auto p = static_cast<double>(positives), n = static_cast<double>(scores.size()) - p;
  return p == 0 || n == 0 ? kNaN : (ranks - p * (p + 1) / 2) / (p * n);
}

nlohmann::json number(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(); }

}  // namespace

double LabelResult::OfLabel::precision() const { return ratio_of(right, given); }
double LabelResult::OfLabel::recall() const { return ratio_of(right, texts); }
double LabelResult::OfLabel::f1() const { return ratio_of(2 * right, texts + given); }

LabelResult label_result(const LabelScores& scores, const std::vector<std::string>& names) {
  LabelResult result;
  const auto labels = names.size(), texts = scores.targets.size();
  for (const auto& name : names) result.labels.push_back({.name = name});
  result.confusion.resize(labels * labels);
  result.calibration_bins.resize(kBins);
  std::vector<double> right, losses;
  for (std::size_t i = 0; i < texts; ++i) {
    const auto begin = scores.log_probs.begin() + static_cast<std::ptrdiff_t>(i * labels);
    const auto best = std::max_element(begin, begin + static_cast<std::ptrdiff_t>(labels));
    const auto given = to_index(best - begin), target = static_cast<std::size_t>(scores.targets[i]);
    const bool is_right = given == target;
    ++result.labels[target].texts;
    ++result.labels[given].given;
    if (is_right) ++result.labels[given].right;
    ++result.confusion[target * labels + given];
    result.right += is_right ? '1' : '0';
    right.push_back(is_right ? 1 : 0);
    losses.push_back(-*(begin + static_cast<std::ptrdiff_t>(target)));
    const double probability = std::exp(*best);
    // A bin includes its upper end: 1 is in the last one.
    const double place = std::ceil(probability * static_cast<double>(kBins)) - 1;
    if (!std::isfinite(place)) continue;
    auto& bin = result.calibration_bins[static_cast<std::size_t>(std::clamp(place, 0.0, kBins - 1.0))];
    ++bin.texts;
    bin.right += right.back();
    bin.probability += probability;
  }
  const std::vector<double> ones(texts, 1.0);
  result.accuracy = ratio(right, ones);
  result.loss = ratio(losses, ones);
  for (const auto& bin : result.calibration_bins)
    result.calibration_error += std::abs(bin.right - bin.probability) / static_cast<double>(texts);
  std::vector<double> column(texts);
  std::vector<bool> has(texts);
  std::int64_t with_texts = 0, with_auc = 0;
  for (std::size_t label = 0; label < labels; ++label) {
    for (std::size_t i = 0; i < texts; ++i) {
      column[i] = scores.log_probs[i * labels + label];
      has[i] = static_cast<std::size_t>(scores.targets[i]) == label;
    }
    auto& one = result.labels[label];
    one.auc = area_under_curve(column, has);
    if (one.texts == 0) continue;
    ++with_texts;
    result.macro_f1 += one.f1();
    if (!std::isnan(one.auc)) {
      ++with_auc;
      result.auc += one.auc;
    }
  }
  result.macro_f1 = with_texts > 0 ? result.macro_f1 / static_cast<double>(with_texts) : kNaN;
  result.auc = with_auc > 0 ? result.auc / static_cast<double>(with_auc) : kNaN;
  if (labels == 2) result.auc = result.labels[1].auc;
  return result;
}

void add_to_json(const LabelResult& result, nlohmann::json& report) {
  const auto within = result.accuracy.interval(0, 1);
  report["texts"] = result.right.size();
  report["loss"] = number(result.loss.value);
  report["label_accuracy"] = result.accuracy.value;
  report["label_accuracy_interval"] = {within.low, within.high};
  report["label_f1"] = number(result.macro_f1);
  report["label_auc"] = number(result.auc);
  report["calibration_error"] = result.calibration_error;
  for (const auto& bin : result.calibration_bins) {
    const auto texts = static_cast<double>(bin.texts);
    report["calibration"].push_back({{"texts", bin.texts},
                                     {"accuracy", bin.texts > 0 ? number(bin.right / texts) : nullptr},
                                     {"probability", bin.texts > 0 ? number(bin.probability / texts) : nullptr}});
  }
  const auto count = result.labels.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto& one = result.labels[i];
    report["labels"].push_back({{"name", one.name},
                                {"texts", one.texts},
                                {"given", one.given},
                                {"precision", one.precision()},
                                {"recall", one.recall()},
                                {"f1", one.f1()},
                                {"auc", number(one.auc)}});
    const auto row = result.confusion.begin() + static_cast<std::ptrdiff_t>(i * count);
    report["confusion"].push_back(std::vector<std::int64_t>(row, row + static_cast<std::ptrdiff_t>(count)));
  }
  report["seconds"] = result.seconds;
}

std::vector<std::string> to_text(const LabelResult& result) {
  const auto within = result.accuracy.interval(0, 1);
  std::vector<std::string> lines{
      fmt::format("accuracy  {:.2f} %   95 % within {:.2f} to {:.2f}   {} in {:.1f} s", 100 * result.accuracy.value,
                  100 * within.low, 100 * within.high, format_count_of(std::ssize(result.right), "text"),
                  result.seconds),
      fmt::format("scores    F1 {:.4f}   AUC {:.4f}   loss {:.4f}   calibration error {:.4f}", result.macro_f1,
                  result.auc, result.loss.value, result.calibration_error)};
  std::size_t width = 5;
  for (const auto& one : result.labels) width = std::max(width, one.name.size());
  width = std::min<std::size_t>(width, 30);
  lines.push_back(fmt::format("{:<10}{:<{}}  {:>8}  {:>8}  {:>9}  {:>7}  {:>7}  {:>7}", "", "label", width, "texts",
                              "given", "precision", "recall", "F1", "AUC"));
  for (std::size_t i = 0; i < std::min(kShown, result.labels.size()); ++i) {
    const auto& one = result.labels[i];
    lines.push_back(fmt::format("{:<10}{:<{}}  {:>8}  {:>8}  {:>9.4f}  {:>7.4f}  {:>7.4f}  {:>7.4f}", "",
                                printable(one.name.substr(0, width)), width, one.texts, one.given, one.precision(),
                                one.recall(), one.f1(), one.auc));
  }
  if (result.labels.size() > kShown)
    lines.push_back(fmt::format("{:<10}and {} more: --json has all", "", result.labels.size() - kShown));
  return lines;
}

void add_metrics(const LabelResult& result, std::vector<Metric>& metrics) {
  metrics.push_back({"label_accuracy", true, result.accuracy, result.right});
  metrics.push_back({"label_loss", false, result.loss});
}

}  // namespace fsdp
