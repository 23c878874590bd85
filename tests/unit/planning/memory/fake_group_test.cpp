#include "lib/ranks/fake_group.hpp"

#include <doctest/doctest.h>

#include <mutex>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/engine/sharding/mesh.hpp"
#include "lib/ranks/thread_group.hpp"

using fsdp::Mesh;
using fsdp::ProcessGroup;
using fsdp::Sharding;

namespace {

std::string describe(const Mesh& mesh) {
  std::string text = std::to_string(mesh.num_nodes) + " nodes, local rank " + std::to_string(mesh.local_rank);
  for (const auto* group : {mesh.shard.ranks.get(), mesh.replicate.ranks.get()}) {
    text += ", " + std::to_string(group->rank()) + " of";
    for (int m = 0; m < group->size(); ++m) text += ' ' + std::to_string(group->world_rank(m));
  }
  return text;
}

/// The mesh of each rank, from real ranks.
std::vector<std::string> real_meshes(int ranks, int per_node, Sharding sharding, int group_size) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  fsdp::run_thread_ranks(ranks, per_node, [&](ProcessGroup& world) {
    const auto text = describe(fsdp::make_mesh(world, sharding, group_size));
    const std::lock_guard lock(mutex);
    texts[static_cast<std::size_t>(world.rank())] = text;
  });
  return texts;
}

}  // namespace

TEST_SUITE("memory/ranks") {
  TEST_CASE("a fake rank has the mesh position of the real rank") {
    for (const auto sharding : {Sharding::full_shard, Sharding::no_shard, Sharding::hybrid_full_shard}) {
      for (const int group_size : {0, 2}) {
        const auto real = real_meshes(8, 4, sharding, group_size);
        for (int rank = 0; rank < 8; ++rank) {
          const auto make = [&](ProcessGroup& world) { fsdp::make_mesh(world, sharding, group_size); };
          const auto world = fsdp::make_fake_world({8, 4, rank}, make);
          CHECK(describe(fsdp::make_mesh(*world, sharding, group_size)) == real[static_cast<std::size_t>(rank)]);
        }
      }
    }
  }

  TEST_CASE("nodes of unequal size are rejected as in a real job") {
    const auto make = [](ProcessGroup& world) { fsdp::make_mesh(world, Sharding::hybrid_full_shard, 0); };
    const auto world = fsdp::make_fake_world({6, 4, 1}, make);

    CHECK_THROWS_AS(make(*world), fsdp::RequestError);
  }

  TEST_CASE("only ranks on one node share memory") {
    const auto nothing = [](ProcessGroup&) {};
    CHECK(fsdp::make_fake_world({4, 4, 0}, nothing)->peer_memory(100, 4) != nullptr);
    CHECK(fsdp::make_fake_world({8, 4, 0}, nothing)->peer_memory(100, 4) == nullptr);
  }

  TEST_CASE("a lone rank's transfers put its own part in place and zeros elsewhere") {
    const auto world = fsdp::make_lone_rank({3, 3, 1}, [](ProcessGroup&) {});
    std::vector<std::byte> in(2, std::byte{7}), out(6, std::byte{1});
    const fsdp::GatherBlock gather{in, out};

    world->all_gather(std::span(&gather, 1))->wait();

    const std::vector<std::byte> want{std::byte{0}, std::byte{0}, std::byte{7},
                                      std::byte{7}, std::byte{0}, std::byte{0}};
    CHECK((out == want));
  }

  TEST_CASE("a rank outside its job is rejected") {
    CHECK_THROWS_AS(fsdp::make_fake_world({2, 1, 2}, [](ProcessGroup&) {}), fsdp::RequestError);
  }
}
