#pragma once
// One optimizer step after the other: data, engine, clipping, optimizer, loss scale.
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lib/engine/optim/lr_schedule.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/data/step_reader.hpp"
#include "lib/training/record/run_manifest.hpp"
#include "lib/training/step/plan.hpp"

namespace fsdp {

struct StepReport {
  std::int64_t step = 0;  ///< counted from 1
  double loss = 0;        ///< mean over the tokens of the global batch, before the update; 0 where there are none
  double grad_norm = 0;   ///< before clipping
  double lr = 0;
  std::int64_t tokens = 0;        ///< targets of the step, all ranks
  std::int64_t first_sample = 0;  ///< its place in the data order, counted from 0
  std::int64_t samples = 0;
  double seconds = 0;
  double data_wait_seconds = 0;     ///< longest of any rank
  double peak_memory_bytes = 0;     ///< highest of any rank
  double peak_rss_bytes = 0;        ///< largest resident set of any rank so far, libraries included
  double reserved_bytes = 0;        ///< CUDA
  double alloc_retries = 0;         ///< CUDA, since the start, highest of any rank
  double num_ooms = 0;              ///< CUDA, likewise
  std::int64_t longest_row = 0;     ///< tokens of a sequence of the longest micro-batch, any rank
  double update_seconds = 0;        ///< of the optimizer, longest of any rank
  std::uint64_t update_bytes = 0;   ///< moved to and from a disk meanwhile, this rank's
  double offload_wait_seconds = 0;  ///< stood still for a disk, longest of any rank
  std::uint64_t offload_bytes_read = 0, offload_bytes_written = 0;  ///< this rank's
  bool skipped = false;   ///< loss or gradient norm is not finite on some rank: nothing was updated
  bool overflow = false;  ///< skipped for a loss scale of fp16 that was too large, and is smaller now
  bool stopped = false;   ///< asked to stop during the step: nothing was updated

  /// A step whose samples have no targets has none.
  bool has_loss() const { return tokens > 0; }
};

struct TrainerOptions {
  BatchPlan batches;
  LrSchedule schedule;
  OptimizerOptions optimizer;
  bool decay_all = false;
  double clip_grad_norm = 0;
  std::uint64_t seed = 0;
  bool shuffle = true;
  std::int64_t fisher_samples = 0;  ///< from which Child-Tuning's D chooses; 0: all rows
};

class Trainer {
 public:
  Trainer(ModelRuntime& runtime, const DataLoader& loader, const TrainerOptions& options);

  Optimizer& optimizer() { return *optimizer_; }
  RunState& state() { return state_; }

  /// Runs the next step over at most `max_samples` samples. Collective.
  /// \param stop_wanted  asked on every rank before each micro-batch; any rank's yes ends the step undone
  StepReport step(std::int64_t max_samples, const std::function<bool()>& stop_wanted);

  /// Global batches that Child-Tuning's D is to measure before the first step, from the beginning of the data on.
  std::int64_t fisher_batches() const;
  /// Measures one of them. Collective. \return false: asked to stop, it is not measured
  /// \throws RuntimeFailure when loss or gradients are not finite
  bool measure_fisher(const std::function<bool()>& stop_wanted);
  /// By what has been measured. Collective.
  ChildSummary choose_child() { return optimizer_->choose_child(*runtime_.mesh().shard); }

  /// Mean loss of the state as it is now, on the samples that come next: a forward pass of one micro-batch. 0 where
  /// they have no tokens. Collective.
  double loss_ahead();

 private:
  std::vector<MicroBatch> load(const StepReport& report, std::int64_t behind);
  std::optional<LossSum> compute_gradients(StepReport& report, std::int64_t behind,
                                           const std::function<bool()>& stop_wanted);
  void wait_for_reader(StepReport& report);
  void read_loss(LossSum loss, StepReport& report);
  std::vector<at::Tensor> gradients();
  void update(double scaled_norm, StepReport& report);
  at::Tensor update_on_device(const LossSum& loss, const StepReport& report);
  void take_outcome(const StepOutcome& outcome, StepReport& report);
  void skip(bool loss_is_finite, StepReport& report);
  bool anyone_not_finite(double loss, double scaled_norm, StepReport& report);
  void adjust_loss_scale(bool overflow);
  void read_memory(StepReport& report) const;

  ModelRuntime& runtime_;
  const DataLoader& loader_;
  TrainerOptions options_;
  StepReader reader_;
  std::unique_ptr<Optimizer> optimizer_;
  RunState state_;
  bool device_decides_ = false;  ///< on all ranks
};

}  // namespace fsdp
