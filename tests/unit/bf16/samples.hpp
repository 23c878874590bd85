#pragma once
// Facts that ranks on various machines would report.
#include <string>
#include <vector>

#include "lib/bf16/facts.hpp"

namespace fsdp::test {

inline RankFacts on_gpu(int rank, const std::string& name, int major, int minor, double bf16, double float32) {
  RankFacts facts;
  facts.rank = rank;
  facts.node = rank / 4;
  facts.host = "gpu" + std::to_string(facts.node + 1);
  facts.processor.name = "AMD EPYC 7543P";
  DeviceInfo gpu;
  gpu.name = name;
  gpu.compute_major = major;
  gpu.compute_minor = minor;
  gpu.total_bytes = std::int64_t{80} << 30;
  gpu.driver = {13, 0, 0};
  gpu.runtime = {12, 6, 0};
  gpu.nccl_built = gpu.nccl = {2, 27, 5};
  gpu.pci_bus_id = "0000:" + std::to_string(rank % 4) + "1:00.0";
  facts.gpu = gpu;
  facts.gemm.bf16_tflops = bf16;
  facts.gemm.float32_tflops = facts.gemm.float32_aten_tflops = float32;
  return facts;
}

inline RankFacts a100(int rank) { return on_gpu(rank, "NVIDIA A100-SXM4-80GB", 8, 0, 255, 18.6); }
inline RankFacts h100(int rank) { return on_gpu(rank, "NVIDIA H100 80GB HBM3", 9, 0, 680, 51); }
inline RankFacts v100(int rank) { return on_gpu(rank, "Tesla V100-SXM2-32GB", 7, 0, 5, 14); }
inline RankFacts t4(int rank) { return on_gpu(rank, "Tesla T4", 7, 5, 2, 4.2); }

inline RankFacts on_processor(int rank) {
  RankFacts facts;
  facts.rank = rank;
  facts.node = rank / 2;
  facts.host = "cpu" + std::to_string(facts.node + 1);
  facts.processor.name = "AMD EPYC 9654";
  facts.processor.avx512_bf16 = true;
  facts.gemm = {0.42, 0.2, 0.1, 0.42, 1024, "brg_matmul:avx512_core_bf16", false, "", ""};
  return facts;
}

inline std::vector<RankFacts> ranks_of(RankFacts (*make)(int rank), int count) {
  std::vector<RankFacts> ranks;
  for (int rank = 0; rank < count; ++rank) ranks.push_back(make(rank));
  return ranks;
}

/// True when one of the lines contains all of `words`.
inline bool says(const std::vector<std::string>& lines, const std::vector<std::string>& words) {
  for (const auto& line : lines) {
    bool all = true;
    for (const auto& word : words) all = all && line.find(word) != std::string::npos;
    if (all) return true;
  }
  return false;
}

}  // namespace fsdp::test
