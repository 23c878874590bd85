// Steps of whole jobs: the rows that make up each step, the learning rate, and the collectives of each strategy.
#include "tests/support/finetune_rig.hpp"

#include <numbers>

using fsdp::ExitCode;
using fsdp::test::Runs;
using fsdp::test::tries;

namespace {

using Losses = std::vector<double>;

double difference(const Losses& a, const Losses& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// Runs on 30 rows of eight targets. With learning rate 0 a step's loss, the mean of its rows' losses, tells its rows.
struct Ordered : Runs {
  Losses losses_of(const std::string& name, const std::string& options, int ranks = 1) {
    const auto outcome = train(name, "--no-save --lr 0 " + options, ranks);
    INFO(outcome.error);
    REQUIRE(outcome.code == ExitCode::ok);
    return losses(name);
  }
  template <typename Value>
  std::vector<Value> of_steps(const std::string& name, const char* key) const {
    std::vector<Value> found;
    for (const auto& record : records(name)) {
      if (record.contains("loss")) found.push_back(record.at(key).get<Value>());
    }
    return found;
  }
};

/// Collectives of a step: all-gathers and reduce-scatters of the shard axis, all-reduces of the replicate axis.
struct Counts {
  int gathers, reductions, all_reduces;
  bool operator==(const Counts&) const = default;
};

Counts collectives_per_step(const std::string& options, int ranks) {
  CAPTURE(options);
  Ordered runs;
  const auto batches = " --num-layers 2 --max-steps 3 --batch-size 2 --total-batch-size ";
  runs.losses_of("run", options + batches + std::to_string(2 * ranks), ranks);
  const auto totals = runs.of_steps<nlohmann::json>("run", "collectives");
  REQUIRE(totals.size() == 3);
  const auto of_step = [&](std::size_t step) {
    const auto count = [&](const char* axis, const char* kind) {
      return totals[step].at(axis).at(kind).get<int>() - totals[step - 1].at(axis).at(kind).get<int>();
    };
    return Counts{count("shard", "all_gathers"), count("shard", "reduce_scatters"), count("replicate", "all_reduces")};
  };
  CHECK(of_step(1) == of_step(2));
  return of_step(2);
}

}  // namespace

TEST_SUITE("jobs/steps") {
  TEST_CASE("without shuffling a step reads rows in the order step, micro-batch, rank") {
    Ordered runs;
    const auto single = runs.losses_of("single", "--no-shuffle --batch-size 1 --total-batch-size 1 --max-steps 30");
    REQUIRE(std::set<double>(single.begin(), single.end()).size() > 28);  // rows are told apart by their losses
    struct Batches {
      int ranks, micro_batch, total;
    };
    for (const auto& [ranks, micro_batch, total] : {Batches{1, 2, 8}, {2, 2, 8}, {3, 1, 6}, {4, 2, 8}}) {
      const auto found = runs.losses_of("ranks-" + std::to_string(ranks),
                                        "--no-shuffle --max-steps 3 --batch-size " + std::to_string(micro_batch) +
                                            " --total-batch-size " + std::to_string(total),
                                        ranks);
      Losses expected;
      for (auto row = single.begin(); expected.size() < 3; row += total)
        expected.push_back(std::accumulate(row, row + total, 0.0) / total);
      CHECK(difference(found, expected) < 1e-5);
    }
  }

  TEST_CASE("the seed alone decides order and weights") {
    Ordered runs;
    const auto one = runs.losses_of("one", "--max-steps 8");
    CHECK(difference(one, runs.losses_of("three", "--max-steps 8", 3)) < 1e-5);
    CHECK(one == runs.losses_of("again", "--max-steps 8"));
    CHECK(difference(one, runs.losses_of("seed", "--max-steps 8 --seed 2")) > 1e-3);
    CHECK(difference(one, runs.losses_of("file", "--max-steps 8 --no-shuffle")) > 1e-4);
  }

  TEST_CASE("epochs use every sample once") {
    Ordered runs;
    runs.losses_of("epochs", "--max-epochs 2 --total-batch-size 8 --batch-size 4", 2);
    CHECK(runs.of_steps<int>("epochs", "tokens") == std::vector<int>{64, 64, 64, 64, 64, 64, 64, 32});
    runs.losses_of("half", "--max-epochs 0.5 --total-batch-size 5 --batch-size 5");
    CHECK(runs.of_steps<int>("half", "tokens") == std::vector<int>{40, 40, 40});
  }

  TEST_CASE("learning rates follow the schedule") {
    Ordered runs;
    const auto factors = [&](const std::string& shape, const std::string& more) {
      runs.train(shape, "--no-save --lr 0.01 --warmup-steps 2 --lr-schedule " + shape + more);
      auto found = runs.of_steps<double>(shape, "lr");
      for (auto& lr : found) lr /= 0.01;
      return found;
    };
    Losses linear{0.5, 1}, cosine{0.5, 1};
    for (int i = 0; i < 6; ++i) {
      linear.push_back(1 - i / 6.0);
      cosine.push_back(0.5 + 0.5 * std::cos(std::numbers::pi * i / 6));
    }
    CHECK(difference(factors("constant", " --max-steps 8"), {0.5, 1, 1, 1, 1, 1, 1, 1}) < 1e-9);
    CHECK(difference(factors("linear", " --max-steps 8"), linear) < 1e-9);
    CHECK(difference(factors("cosine", " --max-steps 8"), cosine) < 1e-9);
    CHECK(factors("linear", " --schedule-steps 100 --max-steps 3").back() > 0.95);
  }

  TEST_CASE("each strategy has its collectives per step") {
    constexpr int units = 3, blocks = 2;  // the root and two blocks
    // The forward pass gathers every unit; the backward pass gathers again the units that the forward pass released:
    // the blocks, but not the root, which the head still uses.
    CHECK(collectives_per_step("--sharding full-shard", 2) == Counts{units + blocks, units, 0});
    CHECK(collectives_per_step("--sharding grad-shard", 2) == Counts{units, units, 0});
    CHECK(collectives_per_step("--sharding optimizer-shard", 2) == Counts{units, units, 0});
    CHECK(collectives_per_step("--sharding no-shard", 2) == Counts{0, 0, units});
    CHECK(collectives_per_step("--sharding hybrid-full-shard --shard-group-size 2", 4) ==
          Counts{units + blocks, units, units});
    CHECK(collectives_per_step("--sharding hybrid-grad-shard --shard-group-size 2", 4) == Counts{units, units, units});
    CHECK(collectives_per_step("--sharding full-shard --wrap none", 2) == Counts{1, 1, 0});
  }

  TEST_CASE("optimizer-shard has the losses of no-shard on any ranks, and either goes on from the other") {
    Runs runs;
    const auto options = [](const std::string& sharding, int ranks, const std::string& more) {
      return "--num-layers 2 --total-batch-size 12 --batch-size " + std::to_string(12 / ranks) + " --sharding " +
             sharding + more;
    };
    for (int ranks = 1, number = 0; ranks <= 4; ++ranks) {
      for (const std::string more : {"", " --collectives host-staged"}) {
        if (!tries(number++, 3)) continue;
        CAPTURE(ranks);
        CAPTURE(more);
        const auto name = std::to_string(ranks) + (more.empty() ? "shared" : "staged");
        runs.train("whole" + name, options("no-shard", ranks, more + " --max-steps 4"), ranks);
        runs.train("sharded" + name, options("optimizer-shard", ranks, more + " --max-steps 2"), ranks);
        const int others = ranks % 4 + 1;
        runs.resume("sharded" + name,
                    "--max-steps 3 --sharding no-shard" + more + " --batch-size " + std::to_string(12 / others),
                    others);
        runs.resume("sharded" + name,
                    "--max-steps 4 --sharding optimizer-shard" + more + " --batch-size " + std::to_string(12 / ranks),
                    ranks);
        CHECK(difference(runs.losses("sharded" + name), runs.losses("whole" + name)) < 1e-5);
      }
    }
  }

  TEST_CASE("inner micro-batches are not reduced") {
    Ordered runs;
    runs.losses_of("run", "--num-layers 2 --sharding full-shard --max-steps 2 --batch-size 1 --total-batch-size 6", 2);
    const auto totals = runs.of_steps<nlohmann::json>("run", "collectives");
    CHECK(totals.at(1).at("shard").at("reduce_scatters").get<int>() -
              totals.at(0).at("shard").at("reduce_scatters").get<int>() ==
          3);
  }
}
