#include "lib/training/step/step_interval.hpp"

#include <charconv>
#include <cmath>

namespace fsdp {
namespace {

/// Reads the whole of `text` as a number. \return false if it is none
template <typename Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

double StepInterval::in_steps(std::int64_t num_rows, std::int64_t rows_per_step) const {
  if (epochs == 0) return static_cast<double>(steps);
  return epochs * static_cast<double>(num_rows) / static_cast<double>(rows_per_step);
}

std::optional<StepInterval> parse_step_interval(std::string_view text) {
  StepInterval interval;
  if (read_number(text, interval.steps) && interval.steps >= 0) return interval;
  interval.steps = 0;
  for (const std::string_view unit : {"epochs", "epoch"}) {
    if (!text.ends_with(unit)) continue;
    const auto number = text.substr(0, text.size() - unit.size());
    if (read_number(number, interval.epochs) && interval.epochs > 0 && interval.epochs < 1e9) return interval;
    break;
  }
  return std::nullopt;
}

bool falls_on(std::int64_t step, double every) {
  // A multiple that rounding has put a little past its step counts as reached.
  constexpr double kRounding = 1e-9;
  const auto reached = [every](std::int64_t at) { return std::floor(static_cast<double>(at) / every + kRounding); };
  return every > 0 && reached(step) > reached(step - 1);
}

}  // namespace fsdp
