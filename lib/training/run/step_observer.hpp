#pragma once
// An interface for those who are told of each step of a run.
#include "lib/reports/runs/step_report.hpp"

namespace fsdp::detail {

/// Listens; decisions about a run are in run_schedule.hpp.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// Called after a step, on every rank. \param last  no other step follows
  virtual void after_step(const StepReport& step, bool last) = 0;
};

}  // namespace fsdp::detail
