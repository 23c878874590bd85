#include "lib/bf16/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lib/bf16/facts.hpp"
#include "lib/bf16/rank_comparison.hpp"

namespace fsdp {
namespace {

constexpr LibraryVersion kOldestRuntime{11, 0, 0};
constexpr LibraryVersion kOldestNccl{2, 10, 0};
constexpr int kNativeCapability = 8;  // major compute capability

Bf16Answer absent(std::string reason) { return {Bf16Verdict::absent, std::move(reason)}; }

std::optional<Bf16Answer> nccl_problem(const char* when, const LibraryVersion& version) {
  if (version >= kOldestNccl) return std::nullopt;
  const auto has = version == LibraryVersion{} ? std::string("does not tell its version") : "is " + to_text(version);
  return absent(fmt::format("NCCL {} {}: bf16 needs 2.10", when, has));
}

/// Describes how training multiplies bf16 on this processor, and at which speed.
std::string way_of_products(const GemmFacts& gemm) {
  if (gemm.widened && gemm.float32_tflops > 0) {
    return fmt::format("; multiplied through float32 at {:.2f} of its speed (bf16's own code: {:.2f})", gemm.ratio(),
                       gemm.bf16_aten_tflops / gemm.float32_tflops);
  }
  return gemm.implementation.empty() ? "" : "; oneDNN " + gemm.implementation;
}

/// Judges a rank without the others: hardware, libraries, correctness of sums.
Bf16Answer judge_alone(const RankFacts& facts, bool job_has_gpus) {
  if (facts.gpu_broken) return absent("no GPU can be used: " + facts.gpu_missing);
  if (!facts.gpu && job_has_gpus) return absent("no GPU here, but other ranks have one: " + facts.gpu_missing);
  auto answer = facts.gpu ? bf16_of_gpu(*facts.gpu) : bf16_of_processor(facts.processor);
  if (answer.verdict == Bf16Verdict::absent) return answer;
  if (!facts.gemm.failure.empty()) return absent("bf16 matrices cannot be multiplied: " + facts.gemm.failure);
  if (!facts.gemm.wrong.empty()) return absent("a bf16 product is wrong: " + facts.gemm.wrong);
  if (!facts.scatter.wrong.empty()) return absent("the bf16 reduce-scatter is wrong: " + facts.scatter.wrong);
  for (const auto* reduce : {&facts.node_reduce, &facts.across_reduce, &facts.job_reduce}) {
    if (!reduce->failure.empty()) return absent("no bf16 all-reduce: " + reduce->failure);
    if (!reduce->wrong.empty()) {
      return absent(fmt::format("the bf16 all-reduce over {} ranks is wrong: {}", reduce->ranks, reduce->wrong));
    }
  }
  if (!facts.gpu) answer.reason += way_of_products(facts.gemm);
  return answer;
}

/// Wrong parts of an all-gather are the fault of the rank that sent them if several ranks got them, else of the one
/// that got them.
void judge_gather(const std::vector<RankFacts>& ranks, const RankFacts& own, Bf16Answer& answer) {
  const auto receivers_of = [&](int sender) {
    return std::count_if(ranks.begin(), ranks.end(), [&](const auto& r) { return r.gather.sender == sender; });
  };
  if (answer.verdict == Bf16Verdict::absent) return;
  if (receivers_of(own.rank) > 1) {
    answer = absent(fmt::format("{} ranks got wrong numbers from it in a bf16 all-gather", receivers_of(own.rank)));
  } else if (!own.gather.wrong.empty() && receivers_of(own.gather.sender) < 2) {
    answer = absent("the bf16 all-gather is wrong: " + own.gather.wrong);
  }
}

}  // namespace

const char* to_text(Bf16Verdict verdict) {
  switch (verdict) {
    case Bf16Verdict::native:
      return "native";
    case Bf16Verdict::emulated:
      return "emulated";
    case Bf16Verdict::absent:
      return "absent";
  }
  return "?";
}

Bf16Answer bf16_of_gpu(const DeviceInfo& gpu) {
  if (gpu.runtime < kOldestRuntime) {
    return absent(fmt::format("CUDA runtime {} has no bf16: it needs 11.0", to_text(gpu.runtime)));
  }
  if (auto problem = nccl_problem("at build time", gpu.nccl_built)) return *problem;
  if (auto problem = nccl_problem("at run time", gpu.nccl)) return *problem;
  if (gpu.compute_major < kNativeCapability) {
    return {Bf16Verdict::emulated, fmt::format("compute capability {}.{} has no bf16 units (8.0 and later have): "
                                               "computed in float32",
                                               gpu.compute_major, gpu.compute_minor)};
  }
  return {Bf16Verdict::native, fmt::format("compute capability {}.{}, CUDA {}, NCCL {}", gpu.compute_major,
                                           gpu.compute_minor, to_text(gpu.runtime), to_text(gpu.nccl))};
}

Bf16Answer bf16_of_processor(const ProcessorFacts& p) {
  if (p.amx_bf16 && p.amx_tile && p.amx_permitted) return {Bf16Verdict::native, "amx_bf16"};
  const auto amx = p.amx_bf16 ? fmt::format("amx_bf16 may not be used ({})", p.amx_tile ? p.amx_refusal : "no amx_tile")
                              : std::string();
  if (p.avx512_bf16) return {Bf16Verdict::native, "avx512_bf16" + (amx.empty() ? "" : "; " + amx)};
  if (p.arm_bf16) return {Bf16Verdict::native, p.arm_sve_bf16 ? "bf16 instructions, also in SVE" : "bf16 instructions"};
  if (!amx.empty()) return {Bf16Verdict::emulated, amx + ": computed in float32"};
  return {Bf16Verdict::emulated,
          "the processor has no bf16 instructions (avx512_bf16, amx_bf16, AArch64's bf16): computed in float32"};
}

Bf16Answer bf16_support(const DeviceInfo* gpu) {
  return gpu != nullptr ? bf16_of_gpu(*gpu) : bf16_of_processor(read_processor());
}

JobAnswer judge_bf16(const std::vector<RankFacts>& ranks) {
  JobAnswer job;
  const bool gpus = std::any_of(ranks.begin(), ranks.end(), [](const auto& r) { return r.gpu || r.gpu_broken; });
  const detail::RankComparison others(ranks);
  double least = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    RankAnswer answer{judge_alone(ranks[i], gpus), false, {}};
    judge_gather(ranks, ranks[i], answer.bf16);
    others.compare(i, answer);
    job.verdict = std::max(job.verdict, answer.bf16.verdict);
    const double speed = ranks[i].gemm.bf16_tflops;
    if (speed > 0 && (job.slowest_rank < 0 || speed < least)) {
      job.slowest_rank = ranks[i].rank;
      least = speed;
    }
    if (answer.bad() && std::find(job.bad_hosts.begin(), job.bad_hosts.end(), ranks[i].host) == job.bad_hosts.end()) {
      job.bad_hosts.push_back(ranks[i].host);
    }
    job.ranks.push_back(std::move(answer));
  }
  return job;
}

}  // namespace fsdp
