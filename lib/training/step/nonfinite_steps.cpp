#include "lib/training/step/nonfinite_steps.hpp"

#include <fmt/format.h>

#include <cmath>

namespace fsdp {

std::string NonFiniteSteps::add(const StepReport& step) {
  if (!step.skipped) count_ = 0;
  if (!step.skipped || step.overflow) return "";
  if (count_ == 0) {
    first_step_ = step.step;
    first_sample_ = step.first_sample;
  }
  ++count_;
  last_step_ = step.step;
  end_sample_ = step.first_sample + step.samples;
  const bool good_loss = std::isfinite(step.loss);
  const double value = good_loss ? step.grad_norm : step.loss;
  return fmt::format("step {}: {} is {}, nothing was updated (samples {} to {} of the data order)", step.step,
                     good_loss ? "the gradient norm" : "the loss", value, step.first_sample,
                     step.first_sample + step.samples - 1);
}

std::string NonFiniteSteps::words() const {
  return fmt::format(
      "{} steps in a row, {} to {}, had a loss or a gradient norm that is not a finite number (samples {} to {} of the "
      "data order)",
      count_, first_step_, last_step_, first_sample_, end_sample_ - 1);
}

}  // namespace fsdp
