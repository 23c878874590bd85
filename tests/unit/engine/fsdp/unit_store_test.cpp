// A unit's parameters and gradients, through shared memory and through collectives.
#include "tests/support/torch_doctest.hpp"

#include <ATen/Parallel.h>

#include "lib/compute/tensor/host_allocator.hpp"
#include "lib/engine/fsdp/unit_grads.hpp"
#include "lib/engine/fsdp/unit_params.hpp"
#include "lib/ranks/thread_group.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// A padded vocabulary, a matrix, a bias with fewer rows than ranks, and one row.
const std::vector<ParamLayout> kLayouts{
    {"a", {97, 5}, 64, true}, {"b", {10, 3, 2}, 1, true}, {"c", {3}, 1, false}, {"d", {1, 7}, 1, true}};

at::Tensor full_values(std::size_t param, int round, at::ScalarType type) {
  const auto n = kLayouts[param].elements();
  return (at::arange(n, at::kFloat) * 0.731f + static_cast<float>(param) + 10.0f * static_cast<float>(round))
      .sin()
      .view(kLayouts[param].shape)
      .to(type);
}

/// Returns a gradient of rank `rank`, [compute_rows, ...], which is zero past the real rows, as a head's is.
at::Tensor gradient_values(std::size_t param, int rank, int round, at::ScalarType type) {
  auto full = at::zeros(kLayouts[param].shape_with_rows(kLayouts[param].compute_rows()), type);
  full.narrow(0, 0, kLayouts[param].rows()).copy_(full_values(param, round * 7 + rank + 1, type));
  return full;
}

template <typename Body>
void for_rigs(const Body& body) {
  at::set_num_threads(1);
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (const bool peer : {true, false}) {
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        INFO(ranks, " ranks, peer memory ", peer, ", ", std::string(c10::toString(type)));
        run_thread_ranks(ranks, ranks, [&](ProcessGroup& group) {
          const auto collectives = make_host_collectives(group);
          body(UnitContext{group, *collectives, host_ops(), peer}, type);
        });
      }
    }
  }
}

}  // namespace

TEST_SUITE("fsdp/unit_params") {
  TEST_CASE("gather: every rank reads all rows of every round, and zeros past them") {
    for_rigs([](const UnitContext& context, at::ScalarType type) {
      const int ranks = context.shard_group.size(), rank = context.shard_group.rank();
      auto its = context;
      its.stays_gathered = type == at::kBFloat16;
      const auto unit = make_unit_params(its, kLayouts, type, "unit 0");
      for (int round = 0; round < 3; ++round) {
        for (std::size_t p = 0; p < kLayouts.size(); ++p) {
          const auto range = shard_range(kLayouts[p].rows(), ranks, rank);
          const auto own = unit->local_shard(p).get();
          CHECK(own.sizes() == at::IntArrayRef(kLayouts[p].shape_with_rows(range.padded_rows)));
          own.narrow(0, 0, range.num_rows)
              .copy_(full_values(p, round, type).narrow(0, range.first_row, range.num_rows));
        }
        unit->begin_sync();
        unit->finish_sync();
        for (int again = 0; again < 2; ++again) {  // one forward and one backward pass between two updates
          unit->unshard();
          unit->wait_for_unshard();
          for (std::size_t p = 0; p < kLayouts.size(); ++p) {
            const auto full = unit->full(p);
            const auto rows = kLayouts[p].rows();
            CHECK(full.is_contiguous());
            CHECK(full.size(0) == kLayouts[p].compute_rows());
            CHECK(same_bits(full.narrow(0, 0, rows), full_values(p, round, type)));
            CHECK(full.narrow(0, rows, full.size(0) - rows).count_nonzero().item<std::int64_t>() == 0);
          }
          unit->reshard();
        }
        context.shard_group.barrier();  // as after a step's reductions, when no rank reads any more
      }
    });
  }
}

TEST_SUITE("fsdp/unit_grads") {
  TEST_CASE("reduce: float32 sums in rank order, with shared slots used in turn, accumulating or not") {
    for_rigs([](const UnitContext& context, at::ScalarType type) {
      const int ranks = context.shard_group.size(), rank = context.shard_group.rank();
      // Three units take turns with two slots, as blocks do.
      std::vector<std::unique_ptr<UnitGrads>> units;
      std::shared_ptr<GradMemory> memory;
      const auto next = std::make_shared<std::size_t>(0);
      if (context.use_peer_memory) {
        memory = std::make_shared<GradMemory>(context.shard_group, context.ops,
                                              std::vector<std::size_t>(2, grad_slot_bytes(kLayouts, type, ranks)));
      }
      for (int u = 0; u < 3; ++u) {
        units.push_back(memory != nullptr
                            ? make_shared_unit_grads(context, kLayouts, type, memory, {0, 1}, next)
                            : make_collective_unit_grads(context, kLayouts, type, at::kFloat, false, true));
        units.back()->prepare();
      }
      std::vector<std::vector<at::Tensor>> want(3);
      for (auto& unit : want) {
        for (const auto& layout : kLayouts) unit.push_back(at::zeros(layout.shape));
      }
      for (int round = 0; round < 4; ++round) {
        const bool accumulate = round % 2 == 1;
        for (int u = 0; u < 3; ++u) {
          auto& unit = *units[static_cast<std::size_t>(u)];
          const int key = round * 3 + u;
          // The last rank has no rows in round 2, the parameter "c" is never written in round 3.
          const auto writes = [&](int r, std::size_t p) {
            return !(round == 2 && r == ranks - 1) && !(round == 3 && p == 2);
          };
          unit.begin();
          unit.begin();  // called by two layers of one unit
          for (std::size_t p = 0; p < kLayouts.size(); ++p) {
            if (!writes(rank, p)) continue;
            context.ops.accumulate(&unit.slots()[p], gradient_values(p, rank, key, type));
          }
          unit.start_reduce(accumulate);
          if (u > 0) units[static_cast<std::size_t>(u) - 1]->finish_reduce(false);
          for (std::size_t p = 0; p < kLayouts.size(); ++p) {
            auto& sum = want[static_cast<std::size_t>(u)][p];
            if (!accumulate) sum = at::zeros_like(sum);
            for (int r = 0; r < ranks; ++r) {
              if (writes(r, p))
                sum.add_(gradient_values(p, r, key, type).narrow(0, 0, kLayouts[p].rows()).to(at::kFloat));
            }
          }
        }
        units[2]->finish_reduce(false);
        for (std::size_t u = 0; u < 3; ++u) {
          for (std::size_t p = 0; p < kLayouts.size(); ++p) {
            INFO("round ", round, " unit ", u, " parameter ", p);
            const auto range = shard_range(kLayouts[p].rows(), ranks, rank);
            const auto shard = units[u]->shard(p);
            CHECK(shard.sizes() == at::IntArrayRef(kLayouts[p].shape_with_rows(range.padded_rows)));
            CHECK(relative_error(shard.narrow(0, 0, range.num_rows),
                                 want[u][p].narrow(0, range.first_row, range.num_rows)) == 0.0);
            CHECK(shard.narrow(0, range.num_rows, range.padded_rows - range.num_rows)
                      .count_nonzero()
                      .item<std::int64_t>() == 0);
          }
        }
      }
    });
  }

  TEST_CASE("GradMemory: counted as external memory while it lives") {
    const auto before = host_memory_stats().current_bytes;
    const auto group = make_single_group();
    {
      const GradMemory memory(*group, host_ops(), {10'000, 5});
      CHECK(host_memory_stats().current_bytes >= before + 10'005);
    }
    CHECK(host_memory_stats().current_bytes == before);
  }
}
