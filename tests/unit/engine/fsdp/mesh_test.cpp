#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"
#include "lib/engine/sharding/mesh.hpp"
#include "lib/ranks/thread_group.hpp"

using namespace fsdp;

namespace {

std::vector<int> members(const ProcessGroup& group) {
  std::vector<int> ranks;
  for (int r = 0; r < group.size(); ++r) ranks.push_back(group.world_rank(r));
  return ranks;
}

/// Ranks placed round-robin on two nodes, as some launchers do: even ranks on one, odd ranks on the other.
class DealtOut final : public ProcessGroup {
 public:
  explicit DealtOut(ProcessGroup& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void barrier() override { inner_.barrier(); }
  void all_reduce(std::span<double> values, Reduce op) override { inner_.all_reduce(values, op); }
  void broadcast(std::span<std::byte> bytes, int root) override { inner_.broadcast(bytes, root); }
  std::vector<std::string> gather(std::string_view text, int root) override { return inner_.gather(text, root); }
  std::unique_ptr<Work> all_gather(std::span<const GatherBlock> blocks) override { return inner_.all_gather(blocks); }
  std::unique_ptr<Work> all_to_all(std::span<const ExchangeBlock> blocks) override { return inner_.all_to_all(blocks); }
  std::unique_ptr<ProcessGroup> split(int color) override { return inner_.split(color); }
  std::unique_ptr<ProcessGroup> split_by_node() override { return inner_.split(inner_.rank() % 2); }
  std::unique_ptr<PeerMemory> peer_memory(std::size_t, std::size_t) override { return nullptr; }
  std::chrono::milliseconds timeout() const override { return inner_.timeout(); }
  int world_rank(int member) const override { return inner_.world_rank(member); }

 private:
  ProcessGroup& inner_;
};

}  // namespace

TEST_SUITE("fsdp/mesh") {
  TEST_CASE("make_mesh: full and grad shard over all ranks, no-shard over one") {
    run_thread_ranks(4, 2, [](ProcessGroup& world) {
      for (const auto sharding : {Sharding::full_shard, Sharding::grad_shard}) {
        const auto mesh = make_mesh(world, sharding, 0);
        CHECK((members(*mesh.shard.ranks) == std::vector<int>{0, 1, 2, 3}));
        CHECK((members(*mesh.replicate.ranks) == std::vector<int>{world.rank()}));
        CHECK(mesh.num_nodes == 2);
        CHECK(mesh.ranks_per_node == 2);
        CHECK(mesh.local_rank == world.rank() % 2);
      }
      const auto mesh = make_mesh(world, Sharding::no_shard, 0);
      CHECK((members(*mesh.shard.ranks) == std::vector<int>{world.rank()}));
      CHECK((members(*mesh.replicate.ranks) == std::vector<int>{0, 1, 2, 3}));
    });
  }

  TEST_CASE("make_mesh: hybrid shards within a node and replicates across") {
    run_thread_ranks(4, 2, [](ProcessGroup& world) {
      for (const auto sharding : {Sharding::hybrid_full_shard, Sharding::hybrid_grad_shard}) {
        const auto mesh = make_mesh(world, sharding, 0);
        const int first = world.rank() / 2 * 2;
        CHECK((members(*mesh.shard.ranks) == std::vector<int>{first, first + 1}));
        CHECK((members(*mesh.replicate.ranks) == std::vector<int>{world.rank() % 2, world.rank() % 2 + 2}));
      }
    });
  }

  TEST_CASE("make_mesh: hybrid groups follow nodes even if ranks are placed round-robin") {
    run_thread_ranks(6, 6, [](ProcessGroup& world) {
      DealtOut dealt(world);
      const auto mesh = make_mesh(dealt, Sharding::hybrid_full_shard, 0);
      const int node = world.rank() % 2;
      CHECK((members(*mesh.shard.ranks) == std::vector<int>{node, node + 2, node + 4}));
      CHECK((members(*mesh.replicate.ranks) == std::vector<int>{world.rank() - node, world.rank() - node + 1}));
    });
  }

  TEST_CASE("make_mesh: a given group size takes precedence over the node") {
    run_thread_ranks(6, 6, [](ProcessGroup& world) {
      const auto mesh = make_mesh(world, Sharding::hybrid_full_shard, 3);
      CHECK(mesh.shard.size() == 3);
      CHECK((members(*mesh.replicate.ranks) == std::vector<int>{world.rank() % 3, world.rank() % 3 + 3}));
      CHECK(make_mesh(world, Sharding::full_shard, 3).shard.size() == 6);  // only hybrids use groups
    });
  }

  TEST_CASE("make_mesh: refuses groups that do not fit, naming numbers and option") {
    CHECK_THROWS_WITH_AS(
        run_thread_ranks(4, 4, [](ProcessGroup& world) { make_mesh(world, Sharding::hybrid_full_shard, 3); }),
        "a shard group of 3 ranks does not divide the 4 ranks of this job", RequestError);
    CHECK_THROWS_AS(
        run_thread_ranks(2, 2, [](ProcessGroup& world) { make_mesh(world, Sharding::hybrid_full_shard, -1); }),
        RequestError);
    CHECK_THROWS_WITH_AS(
        run_thread_ranks(3, 2, [](ProcessGroup& world) { make_mesh(world, Sharding::hybrid_grad_shard, 0); }),
        doctest::Contains("(1 to 2 here)"), RequestError);
  }
}
