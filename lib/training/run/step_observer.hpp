#pragma once
// The interface of objects to which a run reports its steps.
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
