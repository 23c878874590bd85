// Memory runs out beside CUDA graphs: the graphs are released and the failed work runs again, with the bits of a run
// that had enough memory.
#include "tests/unit/compute/cuda/recorded_steps.hpp"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string_view>

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Emulates a full device at the n-th tensor that the engine allocates while it computes.
class FullWhileComputing final : public EngineObserver {
 public:
  void begin(std::string_view what, std::string_view category) override {
    computes_.push_back(category == "compute");
    if (what == "head and loss") ++losses;
    if (category == "compute" && depth_++ == 0 && left >= 0) memory_.emplace(left);
  }
  void end() override {
    const bool computes = computes_.back();
    computes_.pop_back();
    if (!computes || --depth_ > 0 || !memory_) return;
    left = memory_->left();
    memory_.reset();
  }
  int left = -1;   ///< tensors until the device is full
  int losses = 0;  ///< number of losses computed or captured

 private:
  std::vector<bool> computes_;
  int depth_ = 0;
  std::optional<FullMemory> memory_;
};

/// The work during which the device fills.
struct Probe {
  enum class What { whole_step, short_step, evaluation };
  What what = What::short_step;
  int tensors = -1;  ///< tensors until the device is full; negative: it never is
};

struct Probed {
  Outcome outcome;
  double probe_loss = 0;
  bool was_full = false;
  bool step_again = false;
};

/// Makes two steps, the second of which is captured, then the probe, then one more step.
Probed train_probed(SmallJob job, CudaGraphs graphs, const Probe& probe) {
  job.device = recording_device();
  job.sharding.cuda_graphs = graphs;
  job.sharding.host_staged = true;
  Probed probed;
  run_thread_ranks(1, 1, [&](ProcessGroup& world) {
    SmallJobRank rank(world, job);
    auto& engine = rank.runtime.engine();
    FullWhileComputing full;
    engine.observers().add(full);
    const auto samples = job.micro_batch_size * job.accumulation_steps;
    const auto step = [&](int i, std::int64_t n) {
      rank.trainer->state().loss_scale = 1.0 / (3 + i);
      probed.outcome.reports.push_back(rank.trainer->step(n, [] { return false; }));
    };
    for (int i = 0; i < 2; ++i) step(i, samples);
    full.left = probe.tensors;
    full.losses = 0;
    if (probe.what == Probe::What::evaluation) probed.probe_loss = rank.trainer->probe_loss();
    if (probe.what == Probe::What::whole_step) step(2, samples);
    if (probe.what == Probe::What::short_step) step(2, samples - 1);
    probed.was_full = probe.tensors >= 0 && full.left < 0;
    probed.step_again = full.losses > 3;  // three losses, and a failed one
    full.left = -1;
    step(3, samples);
    collect_state(rank, probed.outcome.state);
    probed.outcome.counts = engine.recording_counts();
  });
  return probed;
}

struct Tries {
  int full = 0, steps_again = 0;
};

/// The device fills at the first tensor, at the (1 + stride)-th, and so on, up to the last tensor of the probe.
Tries check_all(const SmallJob& job, Probe::What what, int stride) {
  const auto want = train_probed(job, CudaGraphs::off, {what});
  Tries tries;
  for (int tensors = 0;; tensors += stride) {
    CAPTURE(tensors);
    const auto got = train_probed(job, CudaGraphs::on, {what, tensors});
    check_same(got.outcome, want.outcome);
    CHECK(same(got.probe_loss, want.probe_loss));
    if (!got.was_full) {
      CHECK(got.outcome.counts.given_up == std::string());
      return tries;
    }
    CHECK(got.outcome.counts.given_up == "this device is full");
    CHECK(got.outcome.counts.recorded == std::min<std::int64_t>(job.accumulation_steps, 3));
    ++tries.full;
    tries.steps_again += got.step_again ? 1 : 0;
  }
}

SmallJob job_on(const TempDir& dir) {
  SmallJob job(write_small_rows(dir / "rows.h5"));
  job.model.num_layers = 1;
  job.model.dropout = 0.1;
  return job;
}

}  // namespace

TEST_SUITE("cuda/recorded steps out of room") {
  TEST_CASE("the first micro-batch of a step runs again, wherever it failed") {
    const TempDir dir;
    auto job = job_on(dir);
    CHECK(check_all(job, Probe::What::short_step, 8).full > 3);
    job.sharding.precision = at::kBFloat16;  // gradients are separate from their shards
    CHECK(check_all(job, Probe::What::short_step, 22).full > 1);
  }

  TEST_CASE("a later micro-batch runs again, or its whole step if it had already added to gradients") {
    const TempDir dir;
    auto job = job_on(dir);
    job.accumulation_steps = 3;
    const auto tries = check_all(job, Probe::What::short_step, 11);
    CHECK(tries.steps_again > 1);
    CHECK(tries.full - tries.steps_again > 0);
    // Replayed micro-batches allocate only a copy of each loss.
    const auto whole = check_all(job, Probe::What::whole_step, 1);
    CHECK(whole.full == 3);
    CHECK(whole.steps_again == 0);
  }

  TEST_CASE("an evaluation runs again") {
    const TempDir dir;
    CHECK(check_all(job_on(dir), Probe::What::evaluation, 8).full > 1);
  }

  TEST_CASE("without graphs, and in a head that is called once, running out of memory stays an error") {
    const TempDir dir;
    auto job = job_on(dir);
    job.device = recording_device();
    job.sharding.cuda_graphs = CudaGraphs::on;
    job.sharding.host_staged = true;
    run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      auto& engine = rank.runtime.engine();
      FullWhileComputing full;
      engine.observers().add(full);
      full.left = 5;
      CHECK_THROWS_AS(rank.trainer->probe_loss(), c10::OutOfMemoryError);
      for (int i = 0; i < 2; ++i) rank.step();
      MicroBatch batch;
      batch.rows = 1;
      batch.length = job.model.block_size;
      batch.ids_N = batch.targets_N = at::zeros({batch.length}, at::kInt);
      int calls = 0;
      const HeadBody head = [&](LayerParams, const at::Tensor&) -> LossSum {
        ++calls;
        TORCH_CHECK_WITH(OutOfMemoryError, false, "in a head");
      };
      CHECK_THROWS_AS(engine.evaluate(batch, head), c10::OutOfMemoryError);
      CHECK(calls == 1);
      CHECK(engine.recording_counts().given_up == std::string());
      rank.step();
      CHECK(engine.recording_counts().replayed == 2);
    });
  }
}
