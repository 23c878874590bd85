#pragma once
// The loss on --val-data, in between and at the end.
#include <cmath>

#include "lib/jobs/finetune/memory_watch.hpp"
#include "lib/jobs/finetune/run_record.hpp"

namespace fsdp::detail {

/// \pre there is --val-data. \param record  null: nothing is written down
double validate(ModelRuntime& runtime, const RunSetup& setup, ProgressLine& progress, std::int64_t step,
                RunRecord* record);

class Validation final : public StepObserver {
 public:
  Validation(const RunContext& context, RunRecord& record, MemoryWatch& memory)
      : context_(context), record_(record), memory_(memory) {}
  void after_step(const StepReport& step, bool last) override;
  /// Nothing without --val-data.
  void run();
  double loss() const { return loss_; }

 private:
  const RunContext& context_;
  RunRecord& record_;
  MemoryWatch& memory_;
  double loss_ = std::nan("");
};

}  // namespace fsdp::detail
