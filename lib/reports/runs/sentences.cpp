#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "lib/base/text_format.hpp"
#include "lib/reports/runs/run_summary.hpp"

namespace fsdp {
namespace {

constexpr double kLeast = 0.01;  // share below which a difference is none

/// "33 % less", "1.8 times as much"; empty where there is no difference to speak of.
std::string ratio_words(double ratio, const char* less, const char* more, const char* times) {
  if (!std::isfinite(ratio) || ratio <= 0 || std::abs(ratio - 1) < kLeast) return "";
  if (ratio >= 1.5) return fmt::format("{:.1f} times {}", ratio, times);
  if (ratio <= 0.5) return fmt::format("{:.2f} times {}", ratio, times);
  return fmt::format("{:.0f} % {}", 100 * std::abs(ratio - 1), ratio < 1 ? less : more);
}

std::string speed_words(const RunSummary& base, const RunSummary& run) {
  const auto& a = base.tokens_per_second;
  const auto& b = run.tokens_per_second;
  if (a.count == 0 || b.count == 0) return "has made no step";
  if (std::abs(b.median - a.median) <= a.half_width() + b.half_width()) return "is as fast within the spread";
  const auto words = ratio_words(b.median / a.median, "slower", "faster", "as fast");
  return "is " + (words.empty() ? std::string("as fast") : words);
}

std::string share_words(double base, double bytes, const char* noun) {
  if (!std::isfinite(base) || !std::isfinite(bytes)) return "";
  if (base == 0 && bytes == 0) return "";
  if (base == 0 || bytes == 0) {
    return bytes == 0 ? fmt::format("needs no {}", noun) : fmt::format("needs {} of {}", format_bytes(bytes), noun);
  }
  const auto words = ratio_words(bytes / base, "less", "more", "as much");
  return words.empty() ? "" : fmt::format("needs {} {}", words, noun);
}

std::string retry_words(const RunSummary& run) {
  return run.files.alloc_retries > 0 ? fmt::format("stops for {:.0f} alloc retries", run.files.alloc_retries) : "";
}

std::string joined(const std::vector<std::string>& parts) {
  std::vector<std::string> there;
  for (const auto& part : parts) {
    if (!part.empty()) there.push_back(part);
  }
  if (there.size() < 2) return there.empty() ? "" : there.front();
  const auto last = there.back();
  there.pop_back();
  return fmt::format("{} and {}", fmt::join(there, ", "), last);
}

std::string against(const RunSummary& base, const RunSummary& run) {
  const auto memory = share_words(base.files.peak_bytes, run.files.peak_bytes, "memory");
  const auto communication = share_words(base.received_bytes.median, run.received_bytes.median, "communication");
  const bool both_are_known = std::isfinite(base.files.peak_bytes + run.files.peak_bytes) &&
                              std::isfinite(base.received_bytes.median + run.received_bytes.median);
  const bool alike = both_are_known && memory.empty() && communication.empty();
  return printable(run.label) + " " +
         joined({speed_words(base, run) + (alike ? " with as much memory and communication" : ""), memory,
                 communication, retry_words(run)});
}

/// Of runs that made the same steps over the same rows.
std::string loss_words(const std::vector<RunSummary>& runs) {
  double lowest = std::numeric_limits<double>::infinity(), highest = -lowest;
  const auto& first = runs.front().files;
  for (const auto& run : runs) {
    const bool same = !run.files.steps.empty() && !first.steps.empty() &&
                      run.files.steps.back().step == first.steps.back().step &&
                      run.files.steps.back().tokens == first.steps.back().tokens;
    if (!same || !std::isfinite(run.last_loss)) return "";
    lowest = std::min(lowest, run.last_loss);
    highest = std::max(highest, run.last_loss);
  }
  if (highest == lowest) return fmt::format("Their last losses are equal, {:.4f}.", lowest);
  return fmt::format("Their last losses lie {:.1g} apart.", highest - lowest);
}

}  // namespace

std::vector<std::string> comparison_sentences(const RunComparison& comparison) {
  const auto& runs = comparison.runs;
  std::vector<std::string> sentences;
  if (runs.size() < 2) return sentences;
  std::vector<std::string> parts;
  for (std::size_t i = 1; i < runs.size(); ++i) parts.push_back(against(runs.front(), runs[i]));
  sentences.push_back(fmt::format("Against {}: {}.", printable(runs.front().label), fmt::join(parts, "; ")));
  if (const auto words = loss_words(runs); !words.empty()) sentences.push_back(words);
  return sentences;
}

}  // namespace fsdp
