#pragma once
// Steps whose loss or gradient norm is not finite: how many in a row, which, and when it is enough.
#include <cstdint>
#include <string>

#include "lib/training/step/trainer.hpp"

namespace fsdp {

class NonFiniteSteps {
 public:
  /// \param limit  steps in a row that end a run
  explicit NonFiniteSteps(std::int64_t limit) : limit_(limit) {}

  /// \return what a warning should say of the step, "" when its loss and gradients are finite
  std::string add(const StepReport& step);

  /// Since the last step that updated the model. Overflows of fp16's loss scale, which end by themselves, do not count.
  bool any() const { return count_ > 0; }
  bool too_many() const { return count_ >= limit_; }
  /// "10 steps in a row, 12 to 21, had a loss or a gradient norm that is not a finite number (samples 88 to 167 of
  /// ...)"
  std::string words() const;

 private:
  std::int64_t limit_;
  std::int64_t count_ = 0;
  std::int64_t first_step_ = 0, last_step_ = 0;
  std::int64_t first_sample_ = 0, end_sample_ = 0;
};

}  // namespace fsdp
