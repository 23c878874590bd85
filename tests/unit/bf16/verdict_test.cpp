#include "lib/bf16/verdict.hpp"

#include <doctest/doctest.h>

#include "tests/unit/bf16/samples.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

DeviceInfo gpu_of(const RankFacts& facts) { return facts.gpu.value(); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_SUITE("bf16/verdict") {
  TEST_CASE("bf16_of_gpu: native from compute capability 8.0 on") {
    CHECK(bf16_of_gpu(gpu_of(a100(0))).verdict == Bf16Verdict::native);
    CHECK(bf16_of_gpu(gpu_of(h100(0))).verdict == Bf16Verdict::native);
    CHECK(bf16_of_gpu(gpu_of(v100(0))).verdict == Bf16Verdict::emulated);
    CHECK(bf16_of_gpu(gpu_of(t4(0))).verdict == Bf16Verdict::emulated);

    CHECK(contains(bf16_of_gpu(gpu_of(v100(0))).reason, "compute capability 7.0"));
    CHECK(contains(bf16_of_gpu(gpu_of(t4(0))).reason, "7.5"));
    CHECK(bf16_of_gpu(gpu_of(h100(0))).reason == "compute capability 9.0, CUDA 12.6, NCCL 2.27.5");
  }

  TEST_CASE("bf16_of_gpu: libraries without bf16 make it absent, whatever the GPU") {
    struct Case {
      LibraryVersion runtime, built, run;
      Bf16Verdict verdict;
      const char* word;
    };
    for (const auto& c : {
             Case{{10, 2, 0}, {2, 27, 5}, {2, 27, 5}, Bf16Verdict::absent, "10.2"},
             Case{{11, 0, 0}, {2, 10, 3}, {2, 10, 3}, Bf16Verdict::native, "8.0"},
             Case{{12, 0, 0}, {2, 9, 9}, {2, 27, 5}, Bf16Verdict::absent, "at build time is 2.9.9"},
             Case{{12, 0, 0}, {2, 27, 5}, {2, 8, 4}, Bf16Verdict::absent, "at run time is 2.8.4"},
             Case{{12, 0, 0}, {2, 27, 5}, {}, Bf16Verdict::absent, "at run time does not tell"},
         }) {
      auto gpu = gpu_of(a100(0));
      gpu.runtime = c.runtime;
      gpu.nccl_built = c.built;
      gpu.nccl = c.run;
      const auto answer = bf16_of_gpu(gpu);
      CAPTURE(answer.reason);
      CHECK(answer.verdict == c.verdict);
      CHECK(contains(answer.reason, c.word));
    }
  }

  TEST_CASE("bf16_of_processor: instructions, and permission to use tiles") {
    ProcessorFacts p;
    CHECK(bf16_of_processor(p).verdict == Bf16Verdict::emulated);

    p.amx_bf16 = p.amx_tile = true;
    p.amx_refusal = "Operation not permitted";
    CHECK(bf16_of_processor(p).verdict == Bf16Verdict::emulated);
    CHECK(contains(bf16_of_processor(p).reason, "Operation not permitted"));
    p.avx512_bf16 = true;
    CHECK(bf16_of_processor(p).verdict == Bf16Verdict::native);
    CHECK(contains(bf16_of_processor(p).reason, "avx512_bf16; amx_bf16 may not be used"));
    p.avx512_bf16 = false;
    p.amx_permitted = true;
    CHECK(bf16_of_processor(p).verdict == Bf16Verdict::native);
    p.amx_tile = false;
    CHECK(bf16_of_processor(p).verdict == Bf16Verdict::emulated);

    ProcessorFacts arm;
    arm.arm_bf16 = true;
    CHECK(bf16_of_processor(arm).verdict == Bf16Verdict::native);
  }

  TEST_CASE("bf16_support: judges the GPU, or without one this machine's processor") {
    const auto here = bf16_support(nullptr);
    CHECK(here.verdict != Bf16Verdict::absent);
    CHECK_FALSE(here.reason.empty());
    const auto gpu = gpu_of(v100(0));
    CHECK(bf16_support(&gpu).verdict == Bf16Verdict::emulated);
  }

  TEST_CASE("judge_bf16: equal and good ranks cause no notes") {
    for (auto* make : {a100, h100, on_processor}) {
      const auto answer = judge_bf16(ranks_of(make, 8));
      CHECK(answer.verdict == Bf16Verdict::native);
      CHECK(answer.bad_hosts.empty());
      for (const auto& rank : answer.ranks) CHECK(rank.notes.empty());
    }
  }

  TEST_CASE("judge_bf16: the worst rank decides, and its host is bad") {
    auto ranks = ranks_of(a100, 8);
    ranks[5] = v100(5);
    const auto answer = judge_bf16(ranks);
    CHECK(answer.verdict == Bf16Verdict::emulated);
    CHECK(answer.bad_hosts == std::vector<std::string>{"gpu2"});
    CHECK(answer.slowest_rank == 5);
    CHECK(says(answer.ranks[5].notes, {"device differs", "V100", "A100"}));
    CHECK(answer.ranks[4].bf16.verdict == Bf16Verdict::native);

    ranks[2].gpu->nccl = {2, 8, 3};
    CHECK(judge_bf16(ranks).verdict == Bf16Verdict::absent);
    CHECK(judge_bf16(ranks).bad_hosts == std::vector<std::string>{"gpu1", "gpu2"});
  }

  TEST_CASE("judge_bf16: a rank without a usable GPU among ranks with one") {
    auto ranks = ranks_of(a100, 4);
    ranks[3].gpu.reset();
    ranks[3].gpu_missing = "the NVIDIA driver sees no device";
    auto answer = judge_bf16(ranks);
    CHECK(answer.ranks[3].bf16.verdict == Bf16Verdict::absent);
    CHECK(contains(answer.ranks[3].bf16.reason, "sees no device"));

    // An unusable GPU is an error even if all ranks have one.
    auto broken = ranks_of(on_processor, 2);
    for (auto& rank : broken) {
      rank.gpu_missing = "the NVIDIA driver runs CUDA up to 11.4, this build needs 13.0";
      rank.gpu_broken = true;
    }
    answer = judge_bf16(broken);
    CHECK(answer.verdict == Bf16Verdict::absent);
    CHECK(contains(answer.ranks[0].bf16.reason, "11.4"));
  }

  TEST_CASE("judge_bf16: without any GPU the processor decides, and no GPU is reported missing") {
    auto ranks = ranks_of(on_processor, 4);
    for (auto& rank : ranks) rank.gpu_missing = "no NVIDIA driver on this machine";
    CHECK(judge_bf16(ranks).verdict == Bf16Verdict::native);
    ranks[1].processor.avx512_bf16 = false;
    const auto answer = judge_bf16(ranks);
    CHECK(answer.verdict == Bf16Verdict::emulated);
    CHECK(answer.bad_hosts == std::vector<std::string>{"cpu1"});
  }

  TEST_CASE("judge_bf16: for a slow processor the reason tells how training multiplies, and its speed") {
    auto ranks = ranks_of(on_processor, 2);
    CHECK_FALSE(contains(judge_bf16(ranks).ranks[0].bf16.reason, "float32"));
    ranks[0].gemm.widened = true;
    ranks[0].gemm.float32_tflops = 0.2;
    ranks[0].gemm.bf16_tflops = 0.19;
    ranks[0].gemm.bf16_aten_tflops = 0.09;
    const auto answer = judge_bf16(ranks).ranks[0].bf16;
    CHECK(answer.verdict == Bf16Verdict::native);
    CHECK(contains(answer.reason, "multiplied through float32 at 0.95 of its speed (bf16's own code: 0.45)"));
  }

  TEST_CASE("judge_bf16: wrong sums and failed operations make bf16 absent") {
    auto ranks = ranks_of(a100, 4);
    ranks[1].job_reduce.wrong = "element 7 is 3, the exact sum is 4";
    CHECK(judge_bf16(ranks).ranks[1].bf16.verdict == Bf16Verdict::absent);
    CHECK(contains(judge_bf16(ranks).ranks[1].bf16.reason, "element 7"));
    ranks = ranks_of(a100, 4);
    ranks[2].across_reduce.failure = "ncclInternalError";
    CHECK(judge_bf16(ranks).verdict == Bf16Verdict::absent);
    ranks = ranks_of(a100, 4);
    ranks[2].gemm.failure = "not implemented for 'BFloat16'";
    CHECK(judge_bf16(ranks).verdict == Bf16Verdict::absent);
  }
}
