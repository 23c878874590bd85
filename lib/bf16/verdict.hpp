#pragma once
// Decides from a rank's facts whether bf16 is native, emulated or absent, and why. Pure functions.
//
// On a GPU, bf16 is native from compute capability 8.0 on (A100: 8.0; H100 and H200: 9.0; V100 with 7.0 and T4 with 7.5
// emulate it), given CUDA 11.0 and NCCL 2.10 or newer both at compile time and at run time; a measurement can then turn
// native into emulated. On a processor, bf16 is native with avx512_bf16, with amx_bf16 if the kernel permits tiles, or
// with AArch64's bf16; a slow measurement only causes a warning, because cores are often shared.
#include <optional>
#include <string>
#include <vector>

#include "lib/bf16/facts.hpp"

namespace fsdp {

/// Ordered from best to worst.
enum class Bf16Verdict { native, emulated, absent };

const char* to_text(Bf16Verdict verdict);

struct Bf16Answer {
  Bf16Verdict verdict = Bf16Verdict::native;
  std::string reason;  ///< one line
};

/// Decides without measuring, in negligible time; training programs call it before they compute in bf16.
/// \param gpu  the device that computes; null: this machine's processor computes and is examined
Bf16Answer bf16_support(const DeviceInfo* gpu);

Bf16Answer bf16_of_gpu(const DeviceInfo& gpu);
Bf16Answer bf16_of_processor(const ProcessorFacts& processor);

struct RankAnswer {
  Bf16Answer bf16;
  bool slow = false;               ///< far slower than the other ranks, or on a node far slower than the other nodes
  std::vector<std::string> notes;  ///< anomalies of the rank, one line each

  /// Whether the rank should be excluded from the job.
  bool bad() const { return bf16.verdict != Bf16Verdict::native || slow; }
};

struct JobAnswer {
  Bf16Verdict verdict = Bf16Verdict::native;  ///< verdict of the worst rank
  std::vector<RankAnswer> ranks;              ///< in the order of the ranks
  int slowest_rank = -1;                      ///< rank with the fewest bf16 TFLOP/s; -1: not measured
  std::vector<std::string> bad_hosts;         ///< without duplicates, in the order of their first bad rank
};

/// \param ranks  all ranks of the job, rank 0 first
JobAnswer judge_bf16(const std::vector<RankFacts>& ranks);

}  // namespace fsdp
