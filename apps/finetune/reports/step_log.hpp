#pragma once
// Writes a log line and a line of metrics.jsonl for each step, and warns about CUDA graphs that could not be captured.
#include <cmath>
#include <cstdint>

#include "apps/finetune/reports/run_record.hpp"
#include "apps/finetune/run_setup.hpp"

namespace fsdp::detail {

class StepLog final : public StepObserver {
 public:
  /// \param peak_flops  FLOP/s of all ranks' devices together; 0: unknown
  StepLog(const RunContext& context, RunRecord& record, double peak_flops)
      : context_(context),
        record_(record),
        peak_flops_(peak_flops),
        attended_length_(std::llround(context.setup.train_data->attended_length())) {}
  void after_step(const StepReport& step, bool last) override;

 private:
  bool has(StepMetric::In in) const;
  /// A line of metrics.jsonl.
  nlohmann::json record_of(const StepReport& step);
  void add_sources(const StepReport& step, nlohmann::json& record);
  /// Warns of graphs that were refused since the last call.
  void log_graphs();

  const RunContext& context_;
  RunRecord& record_;
  double peak_flops_;
  std::int64_t attended_length_;     ///< tokens
  std::int64_t steps_ = 0;           ///< made by this job
  std::int64_t refused_graphs_ = 0;  ///< refused graphs that were already logged
};

/// The first and last losses, for the run's last log line.
class LossLog final : public StepObserver {
 public:
  void after_step(const StepReport& step, bool) override {
    ++steps_;
    if (!step.has_loss()) return;
    if (std::isnan(first_)) first_ = step.loss;
    last_ = step.loss;
  }
  double first() const { return first_; }
  double last() const { return last_; }
  /// Steps that this job made.
  std::int64_t steps() const { return steps_; }

 private:
  double first_ = std::nan("");
  double last_ = std::nan("");
  std::int64_t steps_ = 0;
};

}  // namespace fsdp::detail
