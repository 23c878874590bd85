#pragma once
// From facts to the answer: is bf16 native, emulated or absent, and why. Pure functions.
//
// The rule, for a GPU: native from compute capability 8.0 on (A100 8.0, H100 and H200 9.0; V100 7.0 and T4 7.5
// emulate), with a CUDA runtime from 11.0 and NCCL from 2.10, when compiled and when run; then the measurement decides.
// For a processor: avx512_bf16, amx_bf16 with permitted tiles, or AArch64's bf16; there a measurement only warns, since
// cores are often shared.
#include <optional>
#include <string>
#include <vector>

#include "lib/bf16/facts.hpp"

namespace fsdp {

/// From best to worst.
enum class Bf16Verdict { native, emulated, absent };

const char* to_text(Bf16Verdict verdict);

struct Bf16Answer {
  Bf16Verdict verdict = Bf16Verdict::native;
  std::string reason;  ///< one line
};

/// Without any measurement, in no time: what a training program asks before it computes in bf16.
/// \param gpu  the device that computes; null: this machine's processor does, which is then asked
Bf16Answer bf16_support(const DeviceInfo* gpu);

Bf16Answer bf16_of_gpu(const DeviceInfo& gpu);
Bf16Answer bf16_of_processor(const ProcessorFacts& processor);

struct RankAnswer {
  Bf16Answer bf16;
  bool slow = false;               ///< far behind the other ranks, or its node behind the other nodes
  std::vector<std::string> notes;  ///< what is odd about it, a line each

  /// A rank to do without.
  bool bad() const { return bf16.verdict != Bf16Verdict::native || slow; }
};

struct JobAnswer {
  Bf16Verdict verdict = Bf16Verdict::native;  ///< the worst rank's
  std::vector<RankAnswer> ranks;              ///< as the facts
  int slowest_rank = -1;                      ///< fewest bf16 TFLOP/s; -1: not measured
  std::vector<std::string> bad_hosts;         ///< each once, in the order of their first bad rank
};

/// \param ranks  all ranks of the job, rank 0 first
JobAnswer judge_bf16(const std::vector<RankFacts>& ranks);

}  // namespace fsdp
