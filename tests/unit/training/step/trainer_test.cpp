#include "tests/support/small_job.hpp"

#include <cmath>
#include <limits>

#include "tests/support/temp_files.hpp"
#include "tests/support/tensor_compare.hpp"

using fsdp::ProcessGroup;
using fsdp::test::SmallJob;
using fsdp::test::SmallJobRank;
using fsdp::test::TempDir;

TEST_SUITE("train/trainer") {
  TEST_CASE("a step's rows dealt out in any way give the same losses and norms") {
    const TempDir dir;
    SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    job.micro_batch_size = 6;
    const auto alone = fsdp::test::train_small_job(job, 1, 4);

    for (const auto& [ranks, rows, accumulation] : {std::tuple{1, 2, 3}, {2, 3, 1}, {3, 2, 1}, {3, 1, 2}}) {
      job.micro_batch_size = rows;
      job.accumulation_steps = accumulation;
      const auto dealt = fsdp::test::train_small_job(job, ranks, 4);
      CAPTURE(ranks);
      CAPTURE(accumulation);
      for (std::size_t i = 0; i < alone.size(); ++i) {
        // Float32 sums in another order, carried on for four steps.
        CHECK(std::abs(dealt[i].loss / alone[i].loss - 1) < 1e-5);
        CHECK(std::abs(dealt[i].grad_norm / alone[i].grad_norm - 1) < 1e-4);
        CHECK(dealt[i].tokens == alone[i].tokens);
        CHECK(dealt[i].samples == 6);
      }
    }
    CHECK(alone.back().loss < alone.front().loss);
  }

  TEST_CASE("a step tells where it stood in the data, and the state goes on behind it") {
    const TempDir dir;
    const SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    fsdp::run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      rank.step();
      const auto second = rank.step();
      const auto last = rank.trainer->step(1, [] { return false; });

      CHECK(second.step == 2);
      CHECK(second.first_sample == 2);
      CHECK(last.samples == 1);
      CHECK(rank.trainer->state().samples == 5);
      CHECK(rank.trainer->state().optimizer_steps == 3);
    });
  }

  TEST_CASE("the loss ahead is the next step's, and changes nothing") {
    const TempDir dir;
    const SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    fsdp::run_thread_ranks(2, 2, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      rank.step();
      const auto ahead = rank.trainer->probe_loss();
      const auto next = rank.step();
      // The same sums but for the order of the two ranks' parts.
      CHECK(std::abs(ahead / next.loss - 1) < 1e-9);
      CHECK(next.step == 2);
    });
  }

  TEST_CASE("one rank's wish to stop ends the step on all, undone") {
    const TempDir dir;
    const SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    fsdp::run_thread_ranks(2, 2, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      const auto before = rank.runtime.engine().master_weight(0).clone();
      const auto report = rank.trainer->step(100, [&] { return world.rank() == 1; });
      CHECK(report.stopped);
      CHECK(rank.trainer->state().step == 0);
      CHECK(fsdp::test::same_bits(rank.runtime.engine().master_weight(0), before));
    });
  }

  TEST_CASE("a NaN on one rank skips the update on all of them") {
    const TempDir dir;
    const SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    fsdp::run_thread_ranks(2, 2, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      auto& engine = rank.runtime.engine();
      if (world.rank() == 1) engine.master_weight(2).view({-1})[0] = std::numeric_limits<float>::quiet_NaN();
      engine.sync_parameters();
      const auto before = engine.master_weight(0).clone();
      const auto report = rank.step();
      CHECK(report.skipped);
      CHECK_FALSE(report.overflow);
      CHECK(rank.trainer->state().step == 1);
      CHECK(rank.trainer->state().optimizer_steps == 0);
      CHECK(fsdp::test::same_bits(engine.master_weight(0), before));
    });
  }

  TEST_CASE("a loss scale that is too large is halved, and the update skipped") {
    const TempDir dir;
    SmallJob job(fsdp::test::write_small_rows(dir / "rows.h5"));
    job.sharding.precision = at::kHalf;
    fsdp::run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      SmallJobRank rank(world, job);
      rank.trainer->state().loss_scale = 1e30;
      const auto report = rank.step();
      CHECK(report.overflow);
      CHECK(report.skipped);
      CHECK(std::isfinite(report.loss));
      CHECK(rank.trainer->state().loss_scale == 0.5e30);
      rank.trainer->state().loss_scale = 256;
      CHECK_FALSE(rank.step().skipped);
      CHECK(rank.trainer->state().good_steps == 1);
    });
  }
}
