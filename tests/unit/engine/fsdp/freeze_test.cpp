// Frozen parameters: the trained ones get the same gradients as when everything is trained, and the frozen ones cost
// nothing.
#include "tests/unit/engine/fsdp/engine_rig.hpp"

#include <string>

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Makes one step from the same weights, without clipping, so that the norm of trained parameters has no effect.
Setup one_step(const Sharding sharding, int ranks) {
  at::set_num_threads(1);
  auto setup = tiny_setup();
  setup.model.num_layers = 3;
  setup.weights = random_weights(setup.model);
  setup.rows = random_rows(setup.model, 12, 1, setup.model.block_size);
  setup.steps = 1;
  setup.clip = 1e9;
  setup.ranks = ranks;
  setup.ranks_per_node = is_hybrid(sharding) && ranks > 1 ? ranks / 2 : ranks;
  setup.policy.sharding = sharding;
  return setup;
}

const std::vector<FreezeOptions>& choices() {
  static const std::vector<FreezeOptions> all{
      {{}, {"transformer.wte", "transformer.wpe", "transformer.h.0"}},  // the lower half
      {{}, {"transformer.h.1", "transformer.h.2.mlp"}},                 // gradients pass through
      {{}, {"transformer.wte"}},                                        // the head's weight, tied
      {{"transformer.ln_f"}, {}},                                       // nothing but the last norm
      {{"*.bias"}, {}},                                                 // BitFit
      {{"transformer.h.*.attn.*", "transformer.wpe"}, {"*.1.*"}}};
  return all;
}

std::int64_t received(const Outcome& outcome) {
  return outcome.counts[0].shard.bytes + outcome.counts[0].replicate.bytes;
}

}  // namespace

TEST_SUITE("fsdp/freeze") {
  TEST_CASE("trained parameters get the same gradients, frozen ones keep their bits") {
    int number = 0;
    for (const auto sharding : kShardings) {
      for (const int ranks : {1, 4}) {
        for (const bool peer : {true, false}) {
          for (const int variant : {0, 1, 2}) {
            if (!tries(number++, 7)) continue;
            auto setup = one_step(sharding, ranks);
            setup.peer_memory = peer;
            setup.policy.checkpoint_every = variant == 1 ? 1 : 0;
            setup.accumulation = variant == 2 ? 3 : 1;
            setup.policy.reduce_every_micro_batch = variant == 2 && peer;
            const auto all = train(setup);
            for (const auto& freeze : choices()) {
              setup.freeze = freeze;
              const auto got = train(setup);
              const auto trainable = trainable_parameters(setup.model, freeze);
              CHECK(got.losses == all.losses);
              CHECK(received(got) <= received(all));
              for (std::size_t i = 0; i < trainable.size(); ++i) {
                INFO(std::string(to_string(sharding)), " ranks ", ranks, " peer ", peer, " variant ", variant, " ",
                     parameter_table(setup.model)[i].name);
                CHECK(same_bits(got.gradients[i], trainable[i] ? all.gradients[i] : at::zeros_like(all.gradients[i])));
                CHECK(same_bits(got.parameters[i], trainable[i] ? all.parameters[i] : setup.weights[i]));
              }
            }
          }
        }
      }
    }
  }

  TEST_CASE("the norm is that of trained parameters only") {
    auto setup = one_step(Sharding::full_shard, 2);
    setup.freeze = {{"transformer.ln_f.*"}, {}};
    const auto got = train(setup);
    double squares = 0;
    for (const auto& gradient : got.gradients) squares += at::pow(gradient.to(at::kDouble), 2).sum().item<double>();
    CHECK(got.norms.front() == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));
  }

  TEST_CASE("bf16: a frozen weight is stored once, in the gathered dtype") {
    auto setup = one_step(Sharding::full_shard, 2);
    setup.policy.precision.param_dtype = at::kBFloat16;
    setup.freeze = {{}, {"transformer.h.0", "transformer.wpe"}};
    const auto trainable = trainable_parameters(setup.model, setup.freeze);
    train(setup, [&](RigRank& rank) {
      auto& engine = rank.engine();
      for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
        const bool right = engine.master_weight(i).scalar_type() == (trainable[i] ? at::kFloat : at::kBFloat16);
        CHECK(right);
        CHECK(engine.gradient(i).defined() == trainable[i]);
      }
    });
  }

  TEST_CASE("counts: layers below the lowest trained one are gathered once and not reduced") {
    auto setup = one_step(Sharding::full_shard, 2);
    const auto all = train(setup).counts[0].shard;
    CHECK(all.all_gathers == 7);  // root once, three blocks twice
    CHECK(all.reduce_scatters == 4);
    setup.freeze = {{"transformer.h.2"}, {}};
    const auto upper = train(setup).counts[0].shard;
    CHECK(upper.all_gathers == 5);
    CHECK(upper.reduce_scatters == 1);
  }
}
