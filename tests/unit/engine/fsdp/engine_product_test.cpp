// Combinations of the engine's options on thread ranks, against one rank and bit for bit against each other: every
// seventh, which has each value of each option with most of the others; FSDP_ALL=1: every one.
#include "tests/support/temp_files.hpp"
#include "tests/unit/engine/fsdp/engine_rig.hpp"

#include <map>

using namespace fsdp;
using namespace fsdp::test;

namespace {

struct Options {
  int ranks;
  Sharding sharding;
  BackwardPrefetch prefetch;
  bool checkpointing;
  std::string wrap;
  bool peer_memory;
  int accumulation;
  bool reduce_every;

  std::string text() const {
    return std::to_string(ranks) + " ranks " + std::string(to_string(sharding)) + " prefetch " +
           std::string(to_string(prefetch)) + (checkpointing ? " checkpointing" : "") + " wrap " + wrap +
           (peer_memory ? " peer memory" : " collectives") + " accumulation " + std::to_string(accumulation) +
           (reduce_every ? " reducing every" : "");
  }
};

/// Hybrid strategies: two ranks per emulated node if that divides the number of ranks, else one.
int ranks_per_node(const Options& o) { return !is_hybrid(o.sharding) ? o.ranks : o.ranks % 2 == 0 ? 2 : 1; }

int shard_ranks(const Options& o) {
  return o.sharding == Sharding::no_shard ? 1 : is_hybrid(o.sharding) ? ranks_per_node(o) : o.ranks;
}

Setup setup_of(const Setup& base, const Options& o, int variant, const std::string& scratch) {
  auto setup = base;
  setup.ranks = o.ranks;
  setup.ranks_per_node = ranks_per_node(o);
  setup.policy.sharding = o.sharding;
  setup.policy.backward_prefetch = o.prefetch;
  setup.policy.checkpoint_every = o.checkpointing ? 1 : 0;
  setup.policy.reduce_every_micro_batch = o.reduce_every;
  // These options vary along the product instead of multiplying it.
  setup.policy.forward_prefetch = variant % 2 == 1;
  setup.policy.limit_all_gathers = variant % 3 != 1;
  setup.policy.cpu_offload = variant % 5 == 4;
  if (variant % 5 == 2) setup.scratch = scratch;
  setup.policy.offload_parameters = variant % 5 == 2 && !stays_gathered(o.sharding);
  setup.wrap = o.wrap;
  setup.peer_memory = o.peer_memory;
  setup.accumulation = o.accumulation;
  return setup;
}

CommCounts expected_counts(const Options& o, int units, int steps) {
  CommCounts want;
  const bool sharded = shard_ranks(o) > 1;
  const auto micro_batches = static_cast<std::int64_t>(steps * o.accumulation);
  if (sharded) {
    // Full shard gathers every unit except the root again in the backward pass; grad shard keeps units gathered.
    want.shard.all_gathers = gathers_again_in_backward(o.sharding) ? (2 * units - 1) * micro_batches
                                                                   : static_cast<std::int64_t>(units) * steps;
    want.shard.reduce_scatters = units * (o.reduce_every ? micro_batches : steps);
  }
  if (shard_ranks(o) < o.ranks) want.replicate.all_reduces = static_cast<std::int64_t>(units) * steps;
  return want;
}

template <typename Body>
void for_product(int ranks, const Body& body) {
  for (const auto sharding : kShardings) {
    // On one rank all shards are whole.
    if (ranks == 1 && sharding != Sharding::full_shard && sharding != Sharding::no_shard) continue;
    for (const auto prefetch : {BackwardPrefetch::none, BackwardPrefetch::pre, BackwardPrefetch::post}) {
      for (const bool checkpointing : {false, true}) {
        for (const char* wrap : {"block", "none", "size:4000"}) {
          for (const bool peer : {true, false}) {
            for (int mode = 0; mode < 3; ++mode) {
              body(Options{ranks, sharding, prefetch, checkpointing, wrap, peer, mode == 0 ? 1 : 2, mode == 2});
            }
          }
        }
      }
    }
  }
}

void check_product(int ranks) {
  at::set_num_threads(1);
  const TempDir scratch;
  const auto base = tiny_setup();
  const auto reference = train(base);
  REQUIRE(reference.losses.size() == 3);
  // The order of sums depends only on ranks and micro-batches: within such a family all bits must be equal.
  std::map<std::string, Outcome> first;
  Worst worst_loss, worst_parameter;
  int variant = -1, runs = 0;
  for_product(ranks, [&](const Options& o) {
    if (!tries(++variant, 7)) return;
    ++runs;
    INFO(o.text());
    const auto setup = setup_of(base, o, variant, scratch.path().string());
    const auto got = train(setup);
    worst_loss(largest_difference(got.losses, reference.losses));
    CHECK(largest_difference(got.losses, reference.losses) < 2e-5);
    for (std::size_t i = 0; i < got.parameters.size(); ++i) {
      const double error = relative_error(got.gradients[i], reference.gradients[i]);
      worst_parameter(error);
      CHECK(error < 1e-3);
    }
    const bool one_family = shard_ranks(o) == ranks;
    const bool reduces_every = o.reduce_every && (shard_ranks(o) > 1 || !setup.scratch.empty());
    const auto family = std::to_string(o.accumulation) + (reduces_every ? "r" : "l") +
                        (one_family ? std::string("sharded") : std::to_string(shard_ranks(o)));
    const auto [known, is_new] = first.emplace(family, got);
    if (!is_new) CHECK(same_outcome(got, known->second));
    // A unit of at least 4000 elements holds two blocks of 2,000 elements.
    const int units = o.wrap == "block" ? 3 : o.wrap == "none" ? 1 : 2;
    const auto want = expected_counts(o, units, base.steps);
    for (const auto& counts : got.counts) {
      CHECK(counts.shard.all_gathers == want.shard.all_gathers);
      CHECK(counts.shard.reduce_scatters == want.shard.reduce_scatters);
      CHECK(counts.shard.all_reduces == 0);
      CHECK(counts.replicate.all_gathers == 0);
      CHECK(counts.replicate.reduce_scatters == 0);
      CHECK(counts.replicate.all_reduces == want.replicate.all_reduces);
      CHECK((counts.shard.bytes > 0) == (shard_ranks(o) > 1));
      CHECK((counts.replicate.bytes > 0) == (shard_ranks(o) < ranks));
    }
    CHECK(got.used_peer_memory == o.peer_memory);
  });
  MESSAGE(ranks, " ranks, ", runs, " runs: largest loss difference to one rank ", worst_loss.value,
          ", gradient (relative) ", worst_parameter.value);
}

}  // namespace

TEST_SUITE("fsdp/engine product") {
  TEST_CASE("1 rank") { check_product(1); }
  TEST_CASE("2 ranks") { check_product(2); }
  TEST_CASE("3 ranks") { check_product(3); }
  TEST_CASE("4 ranks") { check_product(4); }
}
