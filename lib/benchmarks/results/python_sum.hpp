#pragma once
// Sums as Python makes them.
#include <cmath>
#include <span>

namespace fsdp {

/// sum() of floats of Python 3.12 and newer, which carries what rounding loses (Neumaier). Whole numbers are exact.
class PythonSum {
 public:
  void add(double x) {
    const double total = sum_ + x;
    lost_ += std::abs(sum_) >= std::abs(x) ? (sum_ - total) + x : (x - total) + sum_;
    sum_ = total;
  }
  double value() const { return lost_ != 0 && std::isfinite(lost_) ? sum_ + lost_ : sum_; }

 private:
  double sum_ = 0, lost_ = 0;
};

inline double python_mean(std::span<const double> values) {
  PythonSum sum;
  for (const auto value : values) sum.add(value);
  return sum.value() / static_cast<double>(values.size());
}

}  // namespace fsdp
