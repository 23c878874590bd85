#include <doctest/doctest.h>

#include "apps/bf16check/launch_check.hpp"
#include "apps/bf16check/shared_folder.hpp"
#include "lib/ranks/process_group.hpp"
#include "tests/support/temp_files.hpp"

namespace {

fsdp::LaunchFacts rank_of(int rank, int node, std::vector<int> cores, int node_cores = 8) {
  fsdp::LaunchFacts facts;
  facts.rank = rank;
  facts.node = node;
  facts.host = "node" + std::to_string(node);
  facts.cores = std::move(cores);
  facts.node_cores = node_cores;
  facts.memory = std::int64_t{64} << 30;
  facts.shared = std::int64_t{32} << 30;
  return facts;
}

/// The advice about a subject; "" when there is none.
std::string advice(const std::vector<fsdp::LaunchFacts>& ranks, const std::string& subject, bool by_open_mpi = false) {
  for (const auto& finding : fsdp::judge_launch(ranks, by_open_mpi)) {
    if (finding.subject == subject) return finding.advice;
  }
  FAIL("nothing is said about " << subject);
  return "";
}

}  // namespace

TEST_SUITE("bf16/launch") {
  TEST_CASE("cores: halves of a node, the whole node for each, one of many, shared ones") {
    CHECK(advice({rank_of(0, 0, {0, 1, 2, 3}), rank_of(1, 0, {4, 5, 6, 7})}, "cores").empty());
    CHECK(advice({rank_of(0, 0, {0, 1}, 2), rank_of(1, 0, {0, 1}, 2)}, "cores").empty());
    const std::vector bound{rank_of(0, 0, {0}), rank_of(1, 0, {1})};
    CHECK(advice(bound, "cores").find("use 2 of its 8 cores") != std::string::npos);
    CHECK(advice(bound, "cores", true).find("--bind-to none") != std::string::npos);
    CHECK(advice({rank_of(0, 0, {0, 1, 2, 3}), rank_of(1, 0, {3, 4, 5, 6})}, "cores").find("rank 1 has 3-6") !=
          std::string::npos);
    CHECK(advice({rank_of(0, 0, {2}), rank_of(1, 0, {2})}, "cores").find("share cores") != std::string::npos);
    CHECK(advice({rank_of(0, 0, {0, 1, 2, 3, 4}), rank_of(1, 1, {0, 1, 2, 3, 4})}, "cores").empty());  // on two nodes
  }

  TEST_CASE("ranks per node, GPUs, /dev/shm and locked memory") {
    const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7};
    std::vector ranks{rank_of(0, 0, all), rank_of(1, 0, all), rank_of(2, 1, all)};
    CHECK(advice(ranks, "ranks").find("different numbers of ranks") != std::string::npos);
    CHECK(advice(ranks, "GPUs").empty());
    ranks[0].gpu = ranks[2].gpu = "H100 0000:01:00.0";
    CHECK(advice(ranks, "GPUs").find("rank 1 on node0 has none") != std::string::npos);
    ranks[1].gpu = ranks[0].gpu;
    CHECK(advice(ranks, "GPUs").find("rank 1 shares H100") != std::string::npos);
    CHECK(advice(ranks, "/dev/shm").empty());
    ranks[2].shared = 64 << 20;
    CHECK(advice(ranks, "/dev/shm").find("too small on node1") != std::string::npos);
    ranks[1].memlock = 65536;
    CHECK(advice(ranks, "locked memory").empty());
    ranks[1].has_fabric = true;
    CHECK(advice(ranks, "locked memory").find("limited on node0") != std::string::npos);
  }

  TEST_CASE("file_system_type: the longest mount point, and of two at one point the later one") {
    const std::string mounts =
        "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "30 21 0:40 / /scratch rw shared:7 master:2 - lustre mds@tcp:/fs rw,flock\n"
        "31 21 0:41 / /scratch/nfs rw - nfs4 server:/x rw\n"
        "32 31 0:42 / /scratch/nfs rw - tmpfs tmpfs rw\n";
    CHECK(fsdp::file_system_type("/home/me", mounts) == "ext4");
    CHECK(fsdp::file_system_type("/scratch", mounts) == "lustre");
    CHECK(fsdp::file_system_type("/scratches", mounts) == "ext4");
    CHECK(fsdp::file_system_type("/scratch/me", mounts) == "lustre");
    CHECK(fsdp::file_system_type("/scratch/nfs/me", mounts) == "tmpfs");
    CHECK(fsdp::file_system_type("/x", "").empty());
  }

  TEST_CASE("examine_shared_folder: a rank alone sees its files, locks against itself, and leaves nothing") {
    const fsdp::test::TempDir folder;
    const auto group = fsdp::make_single_group();
    const auto facts = fsdp::examine_shared_folder(*group, folder.path() / "runs");
    CHECK(facts.blind == -1);
    CHECK(facts.appears >= 0);
    CHECK(facts.replaced >= 0);
    CHECK(facts.locks);
    CHECK(facts.lock_error.empty());
    CHECK(!facts.type.empty());
    CHECK(std::filesystem::is_empty(folder.path() / "runs"));
    CHECK_THROWS_AS(fsdp::examine_shared_folder(*group, "/proc/nowhere"), fsdp::IoError);
  }
}
