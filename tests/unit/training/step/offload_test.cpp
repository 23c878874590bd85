// --offload-optimizer nvme: the same numbers as in memory, for every optimizer.
#include "tests/support/small_job.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/support/tensor_compare.hpp"

using fsdp::ChildTuning;
using fsdp::OffloadConfig;
using fsdp::ProcessGroup;
using fsdp::test::collect_state;
using fsdp::test::FullState;
using fsdp::test::same_bits;
using fsdp::test::SmallJob;
using fsdp::test::SmallJobRank;
using fsdp::test::TempDir;

namespace {

struct Trained {
  std::vector<double> losses, norms;
  FullState state;
};

Trained train(const SmallJob& job, int ranks) {
  Trained trained;
  fsdp::run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
    SmallJobRank rank(world, job);
    auto& optimizer = rank.trainer->optimizer();
    while (rank.trainer->fisher_batches() > rank.trainer->state().fisher_batches)
      rank.trainer->measure_fisher([] { return false; });
    if (optimizer.is_choosing_child()) rank.trainer->choose_child();
    for (int i = 0; i < 4; ++i) {
      const auto report = rank.step();
      if (world.rank() != 0) continue;
      trained.losses.push_back(report.loss);
      trained.norms.push_back(report.grad_norm);
    }
    collect_state(rank, trained.state);
  });
  return trained;
}

void check_same(const Trained& a, const Trained& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  REQUIRE(a.state.master_weights.size() == b.state.master_weights.size());
  for (std::size_t i = 0; i < a.state.master_weights.size(); ++i)
    CHECK(same_bits(a.state.master_weights[i], b.state.master_weights[i]));
  REQUIRE(a.state.states.size() == b.state.states.size());
  for (const auto& [key, tensors] : a.state.states) {
    const auto& others = b.state.states.at(key);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      CHECK(tensors[i].defined() == others[i].defined());
      if (tensors[i].defined()) CHECK(same_bits(tensors[i], others[i]));
    }
  }
}

}  // namespace

TEST_SUITE("train/offload") {
  TEST_CASE("every optimizer on a disk gives the bits that it gives in memory, on 1 to 3 ranks") {
    const TempDir dir;
    SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    job.sharding.precision = at::kBFloat16;
    for (const auto& type : fsdp::optimizer_types()) {
      job.optimizer = {};
      job.optimizer.kind = type.name;
      job.optimizer.momentum = 0.9;
      job.optimizer.kahan = true;
      job.optimizer.eight_bit.everything = true;
      job.optimizer.eight_bit.least_elements = 1;
      for (int ranks = 1; ranks <= 3; ++ranks) {
        job.optimizer.adafactor.transformers = ranks == 2;
        job.optimizer.adafactor.beta1 = ranks == 2 ? 0.9 : 0;
        CAPTURE(type.name);
        CAPTURE(ranks);
        job.sharding.offload_optimizer = {};
        const auto in_memory = train(job, ranks);
        // All of a unit together, and each parameter for itself.
        for (const std::int64_t group_bytes : {0, 1}) {
          job.sharding.offload_optimizer = {OffloadConfig::Place::nvme, dir.path().string(), group_bytes};
          check_same(in_memory, train(job, ranks));
        }
      }
    }
  }

  TEST_CASE("Child-Tuning, frozen parameters, float32 and accumulation likewise") {
    const TempDir dir;
    const SmallJob plain(fsdp::test::write_small_rows(dir / "rows.h5"));
    auto task_free = plain, task_driven = plain, frozen = plain, accumulating = plain, narrow = plain;
    narrow.sharding.precision = at::kBFloat16;
    narrow.sharding.master_dtype = at::kBFloat16;
    narrow.optimizer.kind = "anyprecision";
    narrow.optimizer.kahan = true;
    task_free.optimizer.child_tuning = {ChildTuning::task_free, 0.3, 7};
    task_driven.optimizer.child_tuning = {ChildTuning::task_driven, 0.3, 0};
    frozen.sharding.freeze.freeze = {"transformer.h.0*"};
    accumulating.accumulation_steps = 2;
    accumulating.sharding.reduce_every_micro_batch = true;
    for (auto job : {plain, task_free, task_driven, frozen, accumulating, narrow}) {
      for (const int ranks : {1, 2}) {
        // Alone in memory, the sum over micro-batches is taken in another place.
        if (job.accumulation_steps > 1 && ranks == 1) continue;
        job.sharding.offload_optimizer = {};
        const auto in_memory = train(job, ranks);
        job.sharding.offload_optimizer = {OffloadConfig::Place::nvme, dir.path().string(), 4096};
        check_same(in_memory, train(job, ranks));
      }
    }
  }
}
