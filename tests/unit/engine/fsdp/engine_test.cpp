// The engine apart from the product of options: uneven batches, precision, dropout, evaluation, traces.
#include "tests/unit/engine/fsdp/engine_rig.hpp"

#include <atomic>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/types/error.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

Setup four_ranks(Sharding sharding) {
  at::set_num_threads(1);
  auto setup = tiny_setup();
  setup.ranks = 4;
  setup.ranks_per_node = is_hybrid(sharding) ? 2 : 4;
  setup.policy.sharding = sharding;
  return setup;
}

bool finite(const Outcome& outcome) {
  bool good = true;
  for (const double x : outcome.losses) good = good && std::isfinite(x);
  for (const double x : outcome.norms) good = good && std::isfinite(x);
  for (const auto& p : outcome.parameters) good = good && at::isfinite(p).all().item<bool>();
  return good;
}

}  // namespace

TEST_SUITE("fsdp/engine") {
  TEST_CASE("uneven batches: ranks with fewer rows, or none, change nothing") {
    at::set_num_threads(1);
    const auto reference = train(tiny_setup());
    for (const auto sharding : kShardings) {
      for (const bool peer : {true, false}) {
        for (const bool reduce_every : {false, true}) {
          for (const std::vector<std::int64_t>& share : {std::vector<std::int64_t>{3, 0, 1, 8},
                                                         {0, 0, 0, 12},
                                                         {12, 0, 0, 0},
                                                         {0, 5, 0, 2, 1, 0, 0, 4},
                                                         {0, 0, 0, 0, 4, 0, 8, 0}}) {
            auto setup = four_ranks(sharding);
            setup.peer_memory = peer;
            setup.policy.reduce_every_micro_batch = reduce_every;
            setup.share = share;
            setup.accumulation = static_cast<int>(share.size()) / 4;
            const auto got = train(setup);
            INFO(std::string(to_string(sharding)), " peer ", peer, " reducing every ", reduce_every, " first share ",
                 share[0], ' ', share[1], ' ', share[2], ' ', share[3]);
            CHECK(largest_difference(got.losses, reference.losses) < 2e-5);
            CHECK(largest_difference(got.norms, reference.norms) < 1e-4);
          }
        }
      }
    }
  }

  TEST_CASE("precision: 16 bits stay finite and near float32, equally with and without peer memory") {
    const auto reference = train(four_ranks(Sharding::full_shard));
    struct Case {
      at::ScalarType param, reduce;
      double loss_scale, bound;
    };
    int number = 0;
    // Weights and activations have 8 (bf16) and 11 (fp16) significant bits; the losses are about 5.
    for (const auto& c : {Case{at::kBFloat16, at::kBFloat16, 1, 2e-2}, Case{at::kBFloat16, at::kFloat, 1, 2e-2},
                          Case{at::kFloat, at::kBFloat16, 1, 2e-3}, Case{at::kFloat, at::kHalf, 1024, 2e-3},
                          Case{at::kHalf, at::kHalf, 1024, 4e-3}, Case{at::kHalf, at::kFloat, 1024, 4e-3}}) {
      for (const auto sharding : kShardings) {
        for (int mode = 0; mode < 3; ++mode) {
          if (!tries(number++, 7)) continue;
          auto setup = four_ranks(sharding);
          setup.policy.precision.param_dtype = c.param;
          setup.policy.precision.reduce_dtype = c.reduce;
          setup.accumulation = mode == 0 ? 1 : 2;
          setup.policy.reduce_every_micro_batch = mode == 2;
          setup.loss_scale = c.loss_scale;
          const auto got = train(setup);
          INFO("parameters ", std::string(c10::toString(c.param)), ", gradients ", std::string(c10::toString(c.reduce)),
               ", ", std::string(to_string(sharding)), ", mode ", mode);
          CHECK(finite(got));
          CHECK(largest_difference(got.losses, reference.losses) < c.bound);
          CHECK(relative_error(at::tensor(got.norms), at::tensor(reference.norms)) < c.bound);
          setup.peer_memory = false;
          CHECK(same_outcome(train(setup), got));
          setup.policy.cpu_offload = true;  // the host is also the device: only the master weights are separate
          CHECK(same_outcome(train(setup), got));
        }
      }
    }
  }

  TEST_CASE("dropout: masks do not depend on world size, strategy, micro-batch or checkpointing") {
    at::set_num_threads(1);
    auto base = tiny_setup();
    base.model.dropout = 0.2;
    const auto reference = train(base);
    auto plain = base;
    plain.model.dropout = 0.0;
    REQUIRE(largest_difference(train(plain).losses, reference.losses) > 1e-2);
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (const auto sharding : kShardings) {
        for (const int accumulation : {1, 3}) {
          for (const int checkpoint_every : {0, 1}) {
            auto setup = base;
            setup.ranks = ranks;
            setup.policy.sharding = sharding;
            setup.policy.checkpoint_every = checkpoint_every;
            setup.accumulation = accumulation;
            INFO(ranks, " ranks ", std::string(to_string(sharding)), " accumulation ", accumulation, " checkpointing ",
                 checkpoint_every);
            CHECK(largest_difference(train(setup).losses, reference.losses) < 2e-5);
          }
        }
      }
    }
  }

  TEST_CASE("evaluate: computes the forward pass's loss, gathers each unit once, and does not disturb training") {
    for (const auto sharding : kShardings) {
      for (const bool peer : {true, false}) {
        INFO(std::string(to_string(sharding)), " peer ", peer);
        auto setup = four_ranks(sharding);
        setup.peer_memory = peer;
        const auto undisturbed = train(setup);
        const auto again = train(setup, [&](RigRank& rank) {
          auto& engine = rank.engine();
          const auto rows = setup.rows(0);
          const auto before = engine.counts().shard;
          // Every rank evaluates the same five rows, then none.
          const auto loss = engine.evaluate(rank.batch_of(rows, 0, 5));
          CHECK(engine.counts().shard.all_gathers - before.all_gathers == (sharding == Sharding::no_shard ? 0 : 3));
          CHECK(engine.evaluate(rank.batch_of(rows, 0, 5)).nats == loss.nats);
          // Whole parameters are gathered once, by whatever comes first.
          const auto gathers = sharding == Sharding::no_shard ? 0 : sharding == Sharding::optimizer_shard ? 3 : 6;
          CHECK(engine.counts().shard.all_gathers - before.all_gathers == gathers);
          CHECK(engine.counts().shard.reduce_scatters == before.reduce_scatters);
          const auto trained = engine.forward_backward(rank.batch_of(rows, 0, 5), {true, true}, 1.0);
          CHECK(loss.nats == doctest::Approx(trained.nats).epsilon(1e-7));
          CHECK(loss.weight == trained.weight);
          const auto none = engine.evaluate(rank.batch_of(rows, 0, 0));
          CHECK(none.nats == 0.0);
          CHECK(none.weight == 0);
        });
        CHECK(again.losses == undisturbed.losses);
      }
    }
  }

  TEST_CASE("gathered(): the parameters of each layer and of the head") {
    for (const bool peer : {true, false}) {
      auto setup = four_ranks(Sharding::full_shard);
      setup.steps = 0;
      setup.peer_memory = peer;
      train(setup, [&](RigRank& rank) {
        {
          const auto block = rank.engine().gathered(1);
          REQUIRE(block.params().size() == 12);
          CHECK(same_bits(block.params()[0], setup.weights[2]));
        }
        {
          const auto head = rank.engine().gathered(3);
          REQUIRE(head.params().size() == 3);
          CHECK(same_bits(head.params()[2].narrow(0, 0, 97), setup.weights[0]));
          CHECK(head.params()[2].size(0) == 128);
        }
        CHECK(rank.engine().counts().shard.all_gathers == 2);
      });
    }
  }

  TEST_CASE("forward(): the last layer's output and the head, with the gathers of an evaluation") {
    for (const auto sharding : {Sharding::full_shard, Sharding::optimizer_shard, Sharding::no_shard}) {
      INFO(std::string(to_string(sharding)));
      auto setup = four_ranks(sharding);
      setup.peer_memory = false;
      train(setup, [&](RigRank& rank) {
        auto& engine = rank.engine();
        const auto rows = setup.rows(0);
        const auto gathers = [&](const auto& pass) {
          const auto before = engine.counts().shard.all_gathers;
          pass();
          return engine.counts().shard.all_gathers - before;
        };
        const auto batch = rank.batch_of(rows, 0, 5), none = rank.batch_of(rows, 0, 0);
        StepSums want;
        engine.evaluate(batch);
        const auto wanted = gathers([&] { want = engine.evaluate(batch); });
        for (int pass = 0; pass < 2; ++pass) {
          CHECK(gathers([&] {
                  const auto end = engine.forward(batch);
                  StepSums loss;
                  rank.decoder().loss->forward(end.params(), StepContext{batch, 0.0, &loss}, end.x_ND());
                  CHECK(loss.nats == want.nats);
                }) == wanted);
        }
        CHECK(gathers([&] { CHECK_FALSE(engine.forward(none).x_ND().defined()); }) == wanted);
      });
    }
  }

  TEST_CASE("shard(): a change that was not finished is an error, unless an exception ended it") {
    auto setup = four_ranks(Sharding::full_shard);
    setup.steps = 0;
    train(setup, [&](RigRank& rank) {
      auto& engine = rank.engine();
      static_cast<void>(engine.shard(0, Access::read).values());
      engine.sync_parameters();
      const auto fail = [&] {
        const auto shard = engine.shard(0, Access::update);
        throw std::runtime_error("a damaged file");
      };
      CHECK_THROWS_AS(fail(), std::runtime_error);
      engine.sync_parameters();
      engine.shard(0, Access::update).finish();
      engine.sync_parameters();
      static_cast<void>(engine.shard(0, Access::update).values());
      CHECK_THROWS_AS(engine.sync_parameters(), std::logic_error);
    });
  }

  TEST_CASE("gradient_norm: not finite if any gradient of any rank is not") {
    auto setup = four_ranks(Sharding::full_shard);
    setup.steps = 1;
    setup.loss_scale = 1e38;  // overflows
    setup.policy.precision = {at::kHalf, at::kHalf, at::kFloat};
    const auto got = train(setup);
    CHECK_FALSE(std::isfinite(got.norms[0]));
  }

  TEST_CASE("trace: valid JSON that names layers, units and ranks, in order of time") {
    auto setup = four_ranks(Sharding::full_shard);
    setup.trace = true;
    setup.steps = 2;
    const auto got = train(setup);
    std::set<std::string> names;
    for (int rank = 0; rank < 4; ++rank) {
      const auto actions = nlohmann::json::parse("[" + got.traces[static_cast<std::size_t>(rank)] + "]");
      double last_end = 0;
      for (const auto& action : actions) {
        CHECK(action.at("pid") == rank);
        if (action.at("ph") == "M") continue;
        CHECK(action.at("ph") == "X");
        CHECK(action.at("dur").get<double>() >= 0);
        const double end = action.at("ts").get<double>() + action.at("dur").get<double>();
        CHECK(end >= last_end - 0.2);  // events are recorded when they end; times have one decimal
        last_end = std::max(last_end, end);
        names.insert(action.at("name").get<std::string>() + " / " + action.at("cat").get<std::string>());
      }
      CHECK(actions.size() > 2 * 10);
    }
    for (const char* name : {"forward embedding / compute", "forward block 1 / compute", "head and loss / compute",
                             "backward block 0 / compute", "gather unit 2 / collective", "reduce unit 0 / collective",
                             "publish unit 1 / optimizer", "gradient norm / collective"}) {
      INFO(name);
      CHECK(names.count(name) == 1);
    }
    setup.trace = false;
    CHECK(nlohmann::json::parse("[" + train(setup).traces[0] + "]").size() == 1);  // the rank's name only
  }

  TEST_CASE("a rank that fails ends the others at once, whether they wait in collectives or in shared memory") {
    for (const bool peer : {true, false}) {
      auto setup = four_ranks(Sharding::full_shard);
      setup.peer_memory = peer;
      const auto rows = setup.rows;
      std::atomic<int> calls{0};
      setup.rows = [&](int step) {
        if (step == 1 && ++calls == 3) throw RequestError("no more data");
        return rows(step);
      };
      const auto start = std::chrono::steady_clock::now();
      CHECK_THROWS_WITH(train(setup), "no more data");
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
    }
  }
}
