#pragma once
// What a run tells of the disk that it keeps its optimizer on.
#include <nlohmann/json_fwd.hpp>

#include "apps/finetune/run_context.hpp"
#include "lib/training/run/train_loop.hpp"

namespace fsdp::detail {

/// Silent where nothing is on a disk.
class OffloadWatch final : public StepObserver {
 public:
  explicit OffloadWatch(const RunContext& context);
  /// Warns, once, of a disk that training waits for most of the time.
  void after_step(const StepReport& step, bool last) override;
  /// A last line, and "offload" in the report.
  void report(nlohmann::json& report) const;

 private:
  double rate() const { return update_seconds_ > 0 ? bytes_ / update_seconds_ : 0; }

  const RunContext& context_;
  TensorStore* store_;
  double seconds_ = 0, wait_seconds_ = 0;
  double update_seconds_ = 0, bytes_ = 0;  ///< of updates alone
  int steps_ = 0;
  bool warned_ = false;
};

}  // namespace fsdp::detail
