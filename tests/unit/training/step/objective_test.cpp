#include "lib/training/objectives/objective.hpp"
#include "tests/support/objectives.hpp"
#include "tests/support/small_job.hpp"
#include "tests/support/temp_files.hpp"
#include "tests/support/tensor_compare.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <functional>

using namespace fsdp;
using namespace fsdp::test;

namespace {

struct Pass {
  StepSums sums;
  std::vector<at::Tensor> gradients;
};

/// A forward and backward over the first four rows. \param change  of the micro-batch, before its weights are set
Pass run(
    SmallJobRank& rank, const Objective& objective, double scale,
    const std::function<void(MicroBatch&)>& change = [](MicroBatch&) {}) {
  auto& engine = rank.runtime.engine();
  auto batch = rank.loader.read({0, 1, 2, 3});
  change(batch);
  weigh(objective, rank.runtime, batch);
  Pass pass{forward_backward(objective, rank.runtime, batch, {}, scale), {}};
  rank.runtime.ops().fetch(pass.sums);
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) pass.gradients.push_back(engine.gradient(i).clone());
  return pass;
}

/// The next token's objective with the targets that `keep` leaves.
Pass run_part(SmallJobRank& rank, const std::function<at::Tensor(const MicroBatch&)>& keep) {
  return run(rank, Objective(), 1.0,
             [&](MicroBatch& batch) { batch.targets_N.masked_fill_(keep(batch).logical_not(), -1); });
}

void check_sum(const std::vector<at::Tensor>& got, const std::vector<std::pair<double, Pass>>& parts, double scale) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    auto want = at::zeros_like(got[i]);
    for (const auto& [factor, part] : parts) want.add_(part.gradients[i], factor * scale);
    CHECK(relative_error(got[i], want) < 1e-5);
  }
}

}  // namespace

TEST_SUITE("train/objective") {
  TEST_CASE("weights of targets: loss, count and gradient are the weighted sums of those of the targets") {
    const TempDir dir;
    const SmallJob job(write_small_rows(dir / "rows.h5"));
    run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      const at::NoGradGuard no_grad;
      SmallJobRank rank(world, job);
      const auto got = run(rank, WeighedById(), 0.25);
      std::vector<std::pair<double, Pass>> parts;
      for (const double weight : {1.0, 2.0})
        parts.emplace_back(
            weight, run_part(rank, [&](const MicroBatch& batch) { return batch.targets_N.remainder(3).eq(weight); }));
      CHECK(got.sums.nats == doctest::Approx(parts[0].second.sums.nats + 2 * parts[1].second.sums.nats).epsilon(1e-6));
      CHECK(got.sums.weight == parts[0].second.sums.weight + 2 * parts[1].second.sums.weight);
      check_sum(got.gradients, parts, 0.25);
    });
  }

  TEST_CASE("a preference of sequences: the gradient is its slopes times the gradients of the sequences") {
    const TempDir dir;
    const SmallJob job(write_small_rows(dir / "rows.h5"));
    run_thread_ranks(1, 1, [&](ProcessGroup& world) {
      const at::NoGradGuard no_grad;
      SmallJobRank rank(world, job);
      const auto got = run(rank, Preference(), 0.5);
      std::vector<std::pair<double, Pass>> parts;
      for (int row = 0; row < 4; ++row)
        parts.emplace_back(0.0, run_part(rank, [&](const MicroBatch& batch) {
                             return at::arange(batch.rows * batch.length).floor_divide(batch.length).eq(row);
                           }));
      double loss = 0, preferred = 0;
      for (std::size_t i = 0; i < 4; i += 2) {
        const double margin = Preference::kBeta * (parts[i + 1].second.sums.nats - parts[i].second.sums.nats);
        loss += std::log(1 + std::exp(-margin));
        preferred += margin > 0 ? 1 : 0;
        parts[i].first = Preference::kBeta / (1 + std::exp(margin));
        parts[i + 1].first = -parts[i].first;
      }
      CHECK(got.sums.nats == doctest::Approx(loss).epsilon(1e-6));
      CHECK(got.sums.weight == 2);
      CHECK(got.sums.named.front().value == preferred);
      check_sum(got.gradients, parts, 0.5);
    });
  }

  TEST_CASE("a step reports the loss over the objective's count, and its sums by their names") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    job.objective = std::make_shared<Preference>();
    job.micro_batch_size = 4;
    const auto alone = train_small_job(job, 1, 5);
    job.micro_batch_size = 2;
    const auto dealt = train_small_job(job, 2, 5);
    for (std::size_t i = 0; i < alone.size(); ++i) {
      CHECK(alone[i].tokens == 32);
      CHECK(alone[i].weight == 2);
      REQUIRE(alone[i].means.size() == 1);
      CHECK(alone[i].means.front().name == "preferred");
      CHECK(dealt[i].means.front().value == alone[i].means.front().value);
      // Float32 sums in another order, carried on for five steps.
      CHECK(std::abs(dealt[i].loss / alone[i].loss - 1) < 1e-5);
      CHECK(std::abs(dealt[i].grad_norm / alone[i].grad_norm - 1) < 1e-4);
    }
  }

  TEST_CASE("the loss ahead is the next step's with any objective") {
    const TempDir dir;
    SmallJob job(write_small_rows(dir / "rows.h5"));
    for (const std::shared_ptr<const Objective>& objective :
         {std::shared_ptr<const Objective>(std::make_shared<WeighedById>()),
          std::shared_ptr<const Objective>(std::make_shared<Preference>())}) {
      job.objective = objective;
      run_thread_ranks(2, 2, [&](ProcessGroup& world) {
        SmallJobRank rank(world, job);
        const auto ahead = rank.trainer->probe_loss();
        const auto next = rank.step();
        CHECK(std::abs(ahead / next.loss - 1) < 1e-6);
        CHECK(next.means.size() == objective->sums().size());
      });
    }
  }
}
