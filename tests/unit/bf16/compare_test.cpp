#include <doctest/doctest.h>

#include "lib/bf16/verdict.hpp"
#include "tests/unit/bf16/samples.hpp"

using namespace fsdp;
using namespace fsdp::test;

TEST_SUITE("bf16/compare") {
  TEST_CASE("speed: a GPU whose bf16 is no faster than float32 emulates it, whatever its capability") {
    auto ranks = ranks_of(a100, 4);
    ranks[2].gemm.bf16_tflops = 17;
    const auto answer = judge_bf16(ranks);
    CHECK(answer.ranks[2].bf16.verdict == Bf16Verdict::emulated);
    CHECK(answer.ranks[2].bf16.reason.find("0.91 times") != std::string::npos);
    CHECK(answer.verdict == Bf16Verdict::emulated);
  }

  TEST_CASE("speed: emulation is also detected on all ranks and on a single rank") {
    auto ranks = ranks_of(a100, 4);
    for (auto& rank : ranks) rank.gemm.bf16_tflops = 20;
    CHECK(judge_bf16(ranks).verdict == Bf16Verdict::emulated);
    ranks.resize(1);
    CHECK(judge_bf16(ranks).verdict == Bf16Verdict::emulated);
  }

  TEST_CASE("speed: a ratio far below the median of equal GPUs is throttling") {
    auto ranks = ranks_of(h100, 4);
    ranks[1].gemm.bf16_tflops = 250;  // 4.9 times as fast as float32, against 13.3 times on other ranks
    const auto answer = judge_bf16(ranks);
    CHECK(answer.ranks[1].bf16.verdict == Bf16Verdict::emulated);
    CHECK(answer.ranks[1].bf16.reason.find("throttled") != std::string::npos);
    CHECK(answer.slowest_rank == 1);
  }

  TEST_CASE("speed: a GPU that is slow in both types is native, slow and excluded") {
    auto ranks = ranks_of(h100, 8);
    ranks[6].gemm.bf16_tflops = 400;
    ranks[6].gemm.float32_tflops = 30;
    const auto answer = judge_bf16(ranks);
    CHECK(answer.verdict == Bf16Verdict::native);
    CHECK(answer.ranks[6].slow);
    CHECK(says(answer.ranks[6].notes, {"slow", "400", "680"}));
    CHECK(answer.bad_hosts == std::vector<std::string>{"gpu2"});
  }

  TEST_CASE("speed: only equal GPUs are compared; MIG slices with slices") {
    auto ranks = ranks_of(h100, 4);
    ranks[3] = a100(3);
    for (const int r : {1, 2}) {
      ranks[r].gpu->name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb";
      ranks[r].gemm.bf16_tflops = 90;
      ranks[r].gemm.float32_tflops = 7;
    }
    const auto answer = judge_bf16(ranks);
    CHECK(answer.verdict == Bf16Verdict::native);
    CHECK(answer.bad_hosts.empty());
    CHECK(says(answer.ranks[1].notes, {"MIG"}));
  }

  TEST_CASE("speed: a slow processor only causes a warning") {
    auto ranks = ranks_of(on_processor, 4);
    ranks[0].gemm.bf16_tflops = 0.1;
    const auto answer = judge_bf16(ranks);
    CHECK(answer.verdict == Bf16Verdict::native);
    CHECK(says(answer.ranks[0].notes, {"slower than float32", "0.50"}));
    CHECK(answer.ranks[0].slow);
    CHECK(answer.slowest_rank == 0);
    CHECK(answer.bad_hosts == std::vector<std::string>{"cpu1"});
    // A rank without a measurement is not slow.
    ranks[0].gemm = {};
    ranks[0].gemm.implementation = ranks[1].gemm.implementation;
    CHECK(judge_bf16(ranks).bad_hosts.empty());
    CHECK(judge_bf16(ranks).slowest_rank == 1);
  }

  TEST_CASE("oneDNN: an implementation that ignores the processor's bf16 instructions is noted") {
    auto ranks = ranks_of(on_processor, 2);
    ranks[1].gemm.implementation = "gemm:jit:bf16";
    const auto answer = judge_bf16(ranks);
    CHECK(answer.verdict == Bf16Verdict::native);
    CHECK(says(answer.ranks[1].notes, {"oneDNN", "gemm:jit:bf16"}));
    CHECK_FALSE(says(answer.ranks[0].notes, {"oneDNN"}));
    CHECK(says(answer.ranks[1].notes, {"bf16 code differs"}));
  }

  TEST_CASE("links: a slow node makes all its ranks slow") {
    auto ranks = ranks_of(a100, 16);
    for (auto& rank : ranks) rank.node_reduce = {4, 1 << 26, rank.node == 2 ? 40.0 : 230.0, "NCCL", "", "", ""};
    auto answer = judge_bf16(ranks);
    CHECK(answer.bad_hosts == std::vector<std::string>{"gpu3"});
    for (int r = 8; r < 12; ++r) CHECK(says(answer.ranks[r].notes, {"slow node", "inside the node", "40"}));

    // The node is slow with both neighbours; each of them is fast with its other neighbour.
    ranks = ranks_of(a100, 16);
    ranks[0].pairs = {{"gpu2", 2}, {"gpu4", 20}};
    ranks[4].pairs = {{"gpu1", 2}, {"gpu3", 2}};
    ranks[8].pairs = {{"gpu4", 20}, {"gpu2", 2}};
    ranks[12].pairs = {{"gpu3", 20}, {"gpu1", 20}};
    answer = judge_bf16(ranks);
    CHECK(answer.bad_hosts == std::vector<std::string>{"gpu2"});
    CHECK(says(answer.ranks[4].notes, {"slow node", "to its neighbours"}));
  }

  TEST_CASE("libraries: another NCCL than at compile time, an older driver and a shared GPU are noted") {
    auto ranks = ranks_of(a100, 4);
    ranks[1].gpu->nccl = {2, 21, 5};
    ranks[2].gpu->driver = {12, 2, 0};
    ranks[3].gpu->pci_bus_id = ranks[0].gpu->pci_bus_id;
    const auto answer = judge_bf16(ranks);
    CHECK(answer.verdict == Bf16Verdict::native);
    CHECK(says(answer.ranks[1].notes, {"NCCL 2.21.5 runs", "2.27.5 was compiled"}));
    CHECK(says(answer.ranks[1].notes, {"its NCCL differs"}));
    CHECK(says(answer.ranks[2].notes, {"driver", "12.2", "12.6"}));
    CHECK(says(answer.ranks[3].notes, {"shares GPU", "rank 0"}));
    CHECK(says(answer.ranks[0].notes, {"shares GPU", "rank 3"}));
  }
}
