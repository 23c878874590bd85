#pragma once
// One optimizer step after the other: data, engine, clipping, optimizer, loss scale.
#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lib/engine/optim/lr_schedule.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/reports/runs/step_report.hpp"
#include "lib/training/data/data_loader.hpp"
#include "lib/training/data/step_reader.hpp"
#include "lib/training/objectives/objective.hpp"
#include "lib/training/record/run_manifest.hpp"
#include "lib/training/step/plan.hpp"

namespace fsdp {

struct TrainerOptions {
  BatchPlan batches;
  LrSchedule schedule;
  OptimizerOptions optimizer;
  bool decay_all = false;
  double clip_grad_norm = 0;
  std::uint64_t seed = 0;
  std::int64_t fisher_samples = 0;  ///< from which Child-Tuning's D chooses; 0: all rows
  std::shared_ptr<const Objective> objective = std::make_shared<const Objective>();
};

class Trainer {
 public:
  Trainer(ModelRuntime& runtime, const DataLoader& loader, const TrainerOptions& options);

  Optimizer& optimizer() { return *optimizer_; }
  RunState& state() { return state_; }

  /// Begins the next step over at most `max_samples` samples: asks the device for all of it. Collective.
  /// \param stop_wanted  asked on every rank before each micro-batch; if any rank returns true, the step is abandoned
  /// \return false if it was asked to stop
  bool begin_step(std::int64_t max_samples, const std::function<bool()>& stop_wanted);
  /// True if a step may begin while the step before it is under way, since nothing of its result is needed for that.
  bool begins_early() const { return device_decides_ && !runtime_.policy().precision.needs_loss_scale(); }
  /// Waits for the end of the oldest step under way. If that was skipped, the step that has begun after it has changed
  /// nothing and is undone: it is to begin again. Collective.
  StepReport finish_step();
  /// Steps that have begun and are neither finished nor undone: at most two.
  std::size_t steps_under_way() const { return under_way_.size(); }
  /// Both, with no other step under way. A stopped step says so in its report.
  StepReport step(std::int64_t max_samples, const std::function<bool()>& stop_wanted);

  /// Global batches that Child-Tuning's D is to measure before the first step, from the beginning of the data on.
  std::int64_t fisher_batches() const;
  /// Measures one of them. Collective. \return false: asked to stop, it is not measured
  /// \throws RuntimeFailure when loss or gradients are not finite
  bool measure_fisher(const std::function<bool()>& stop_wanted);
  /// Chooses the elements to train by the measured Fisher information. Collective.
  ChildSummary choose_child() { return optimizer_->choose_child(*runtime_.mesh().shard.ranks); }

  /// Mean loss of the state as it is now, on the samples that come next: a forward pass of one micro-batch. 0 where
  /// they have no tokens. Collective.
  double probe_loss();
  /// Sum of the losses of the micro-batch that a rank of the data would get next, computed here. Each rank may ask for
  /// that of another. Collective.
  double next_loss(int data_rank);

 private:
  using Clock = std::chrono::steady_clock;
  /// A step that has begun.
  struct StepUnderWay {
    StepReport report;
    Clock::time_point start = Clock::now();
    StoreStats store;                              ///< at its start
    std::unique_ptr<TimeMark> first_forward, end;  ///< null: the device works when the host does
    std::function<StepOutcome()> outcome;          ///< waits for the step's end
  };

  std::vector<MicroBatch> load(StepReport& report, double& second_count, std::int64_t next_samples);
  std::optional<StepSums> compute_gradients(StepUnderWay& step, std::int64_t next_samples,
                                            const std::function<bool()>& stop_wanted);
  void wait_for_reader(StepReport& report);
  void undo_later_steps();
  StepSums read_sums(StepSums sums);
  std::vector<at::Tensor> gradients(const std::vector<std::size_t>& params);
  void update(const StepSums& sums, StepUnderWay& step);
  StepOutcome decide(const StepSums& sums, double scaled_norm);
  void take_outcome(const StepOutcome& outcome, StepReport& report);
  void adjust_loss_scale(bool overflow);
  void read_memory(StepReport& report) const;
  StepSums next_sums(int data_rank);

  ModelRuntime& runtime_;
  const DataLoader& loader_;
  TrainerOptions options_;
  StepReader reader_;
  std::unique_ptr<Optimizer> optimizer_;
  RunState state_;
  bool device_decides_ = false;  ///< on all ranks
  std::deque<StepUnderWay> under_way_;
  at::Tensor decision_;                 ///< of the newest step, where the device decides
  std::unique_ptr<TimeMark> last_end_;  ///< of the newest finished step
  Clock::time_point last_finish_{};
};

}  // namespace fsdp
