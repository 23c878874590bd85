#include "lib/training/evaluate/evaluation_progress.hpp"

#include <fmt/format.h>

#include <utility>

#include "lib/base/text_format.hpp"

namespace fsdp {

EvaluationProgress::EvaluationProgress(const Logger& log, bool enabled, std::string what)
    : status_(log), enabled_(enabled), what_(std::move(what)), start_(Clock::now()), last_(start_) {}

void EvaluationProgress::show(double share, const std::string& detail) {
  if (!enabled_ || share <= 0 || share >= 1) return;
  const auto now = Clock::now();
  const std::chrono::duration<double> interval(status_.on_terminal() ? 0.2 : 30.0);
  if (now - last_ < interval) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const auto line = fmt::format("{}   {:.0f} %   {}   eta {}", what_, 100 * share, detail,
                                format_duration(seconds / share - seconds));
  status_.on_terminal() ? status_.show(line) : status_.keep(line);
}

}  // namespace fsdp
