#pragma once
// Reports the throughput of the disk that optimizer states are offloaded to.
#include <nlohmann/json_fwd.hpp>

#include "apps/finetune/run_setup.hpp"
#include "lib/engine/offload/tensor_store.hpp"
#include "lib/training/run/step_observer.hpp"

namespace fsdp::detail {

/// Logs nothing when no optimizer state is on disk.
class OffloadReporter final : public StepObserver {
 public:
  explicit OffloadReporter(const RunContext& context);
  /// Warns once when training waits for the disk most of the time.
  void after_step(const StepReport& step, bool last) override;
  /// Logs a summary line and adds "offload" to the report.
  void report(nlohmann::json& report) const;

 private:
  double rate() const { return update_seconds_ > 0 ? bytes_ / update_seconds_ : 0; }

  const RunContext& context_;
  TensorStore* store_;
  double seconds_ = 0, wait_seconds_ = 0;
  double update_seconds_ = 0, bytes_ = 0;  ///< in optimizer updates only
  int steps_ = 0;
  bool warned_ = false;
};

}  // namespace fsdp::detail
