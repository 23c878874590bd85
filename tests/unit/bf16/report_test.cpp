#include "apps/bf16check/bf16_report.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/unit/bf16/samples.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

std::vector<RankFacts> two_nodes() {
  auto ranks = ranks_of(a100, 8);
  for (auto& rank : ranks) {
    rank.job_reduce = {8, 1 << 26, 21.5, "NCCL 2.27.5, NET/IB + P2P/CUMEM", "", "", "float32"};
    rank.node_reduce = {4, 1 << 26, 231, "NCCL 2.27.5, P2P/CUMEM", "", "", ""};
    if (rank.rank % 4 == 0) rank.across_reduce = {2, 1 << 26, 22.5, "NCCL 2.27.5, NET/IB", "", "", ""};
  }
  return ranks;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_SUITE("bf16/report") {
  TEST_CASE("facts travel between ranks unchanged") {
    auto facts = two_nodes()[4];
    facts.gpu->nccl_built = {2, 9, 0};
    facts.pairs = {{"gpu9", 1.25}};
    facts.gemm.failure = "none \"at\" all\n";
    facts.processor.amx_refusal = "no";
    const auto json = to_json(facts);
    CHECK(to_json(rank_facts_from_json(nlohmann::json::parse(json.dump()))) == json);
    facts.gpu.reset();
    CHECK_FALSE(rank_facts_from_json(to_json(facts)).gpu.has_value());
    CHECK_THROWS_AS(rank_facts_from_json({{"rank", 1}}), std::logic_error);
  }

  TEST_CASE("table: a line per rank, the links, the verdict") {
    auto ranks = two_nodes();
    ranks[6] = v100(6);
    const auto text = bf16_table(ranks, judge_bf16(ranks));
    CAPTURE(text);
    CHECK(has(text,
              "   0  gpu1  NVIDIA A100-SXM4-80GB  native         13.7      255        231  compute capability 8.0"));
    CHECK(has(text, "   6  gpu2  Tesla V100-SXM2-32GB   emulated"));
    CHECK(has(text, "over 8 ranks: exact, sums in float32, bus bandwidth 21.5 GB/s (NCCL 2.27.5, NET/IB + P2P/CUMEM)"));
    CHECK(has(text, "inside nodes   gpu1 231 GB/s, gpu2 231 GB/s (NCCL 2.27.5, P2P/CUMEM)"));
    CHECK(has(text, "between nodes  22.5 GB/s over the first ranks of 2 nodes (NCCL 2.27.5, NET/IB)"));
    CHECK(has(text, "slowest        rank 6 on gpu2: 5 bf16 TFLOP/s"));
    CHECK(has(text, "bad hosts      gpu2\n"));
    CHECK(has(text, "bf16 is        emulated\n"));
  }

  TEST_CASE("table: wrong sums are prominent") {
    auto ranks = two_nodes();
    ranks[3].job_reduce.wrong = "element 0 is 1, the exact sum is 2";
    const auto text = bf16_table(ranks, judge_bf16(ranks));
    CHECK(has(text, "WRONG on rank 3: element 0 is 1"));
    CHECK_FALSE(has(text, ": exact"));
    CHECK(bf16_json(ranks, judge_bf16(ranks))["all_reduce"]["exact"] == false);
  }

  TEST_CASE("table: sums in bf16 over many ranks come with advice") {
    for (const int count : {64, 65}) {
      auto ranks = ranks_of(a100, count);
      for (auto& rank : ranks) rank.job_reduce = {count, 1 << 26, 21.5, "NCCL 2.27.5", "", "", "bf16"};
      CHECK(has(bf16_table(ranks, judge_bf16(ranks)), "--reduce-dtype float32") == (count > 64));
    }
  }

  TEST_CASE("json: verdict, ranks, links") {
    auto ranks = two_nodes();
    ranks[1].gemm.bf16_tflops = 100;
    ranks[1].gemm.float32_tflops = 7.3;
    const auto json = bf16_json(ranks, judge_bf16(ranks));
    CHECK(json["verdict"] == "native");
    CHECK(json["world_size"] == 8);
    CHECK(json["nodes"] == 2);
    REQUIRE(json["ranks"].size() == 8);
    CHECK(json["ranks"][5]["rank"] == 5);
    CHECK(json["ranks"][5]["host"] == "gpu2");
    CHECK(json["ranks"][5]["device"] == "NVIDIA A100-SXM4-80GB");
    CHECK(json["ranks"][5]["verdict"] == "native");
    CHECK(json["ranks"][5]["reason"] == "compute capability 8.0, CUDA 12.6, NCCL 2.27.5");
    CHECK(json["ranks"][1]["slow"] == true);
    CHECK(json["ranks"][1]["bad"] == true);
    CHECK(json["slowest_rank"] == 1);
    CHECK(json["inside_nodes"][1]["bus_gb_per_s"] == 231);
    CHECK(json["between_nodes"]["bus_gb_per_s"] == 22.5);
    CHECK(json["all_reduce"]["exact"] == true);
    ranks.resize(4);
    CHECK(bf16_json(ranks, judge_bf16(ranks))["between_nodes"].is_null());
  }

  TEST_CASE("exclude_list: one line, each host once, empty without bad hosts") {
    auto ranks = ranks_of(a100, 12);
    CHECK(exclude_list(judge_bf16(ranks)).empty());
    for (const int r : {9, 1, 2}) ranks[static_cast<std::size_t>(r)] = t4(r);
    CHECK(exclude_list(judge_bf16(ranks)) == "gpu1,gpu3\n");
  }
}
