#pragma once
// Facts that one rank collects about bf16 on its device. lib/bf16/verdict.hpp draws the conclusions.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/bf16/processor.hpp"
#include "lib/compute/device/gpus.hpp"

namespace fsdp {

/// Results of timed matrix products; 0: not measured.
struct GemmFacts {
  double bf16_tflops = 0;
  double float32_tflops = 0;       ///< of training's product (lib/compute/ops/products/gemm.hpp)
  double float32_aten_tflops = 0;  ///< of at::mm
  /// of at::mm, on a processor; bf16_tflops would be this if training did not widen to float32
  double bf16_aten_tflops = 0;
  std::int64_t size = 0;       ///< n of the n x n x n products
  std::string implementation;  ///< oneDNN's implementation for bf16: "brg_matmul:avx512_core_bf16"; "" on a GPU
  bool widened = false;  ///< training multiplies bf16 through float32 here (lib/compute/ops/products/wide_product.hpp)
  std::string failure;   ///< why bf16 products failed; "" when they worked
  std::string wrong;     ///< describes a repetition of a product that gave other bits than the first; "" when none did

  /// \return bf16 speed over float32 speed; 0 when one of them was not measured
  double ratio() const { return float32_tflops > 0 ? bf16_tflops / float32_tflops : 0; }
};

/// Results of a bf16 all-reduce over a group of ranks.
struct ReduceFacts {
  int ranks = 0;            ///< size of the group; 0: not measured
  std::int64_t bytes = 0;   ///< of each rank's tensor
  double bus_gb_per_s = 0;  ///< bus bandwidth as nccl-tests defines it: bytes / seconds * 2 (n - 1) / n / 1e9
  std::string transport;    ///< "NCCL 2.28.9, NET/IB", "shared memory", "MPICH 5.0.2"
  std::string wrong;        ///< describes the first element that differs from the exact sum; "" when all agree
  std::string failure;      ///< why the all-reduce failed; "" when it worked
  std::string sums_in;      ///< precision of the additions: "float32" or "bf16"; "" when two ranks cannot tell
};

/// Results of bf16 all-gathers or reduce-scatters over all ranks.
struct TransferFacts {
  std::int64_t bytes = 0;   ///< of the whole tensor; 0: not measured
  double bus_gb_per_s = 0;  ///< as nccl-tests defines it: bytes / seconds * (n - 1) / n / 1e9
  std::string wrong;        ///< as in ReduceFacts
  int sender = -1;          ///< rank whose part of an all-gather arrived wrongly; -1: none
};

/// Speeds in 1e9 bytes a second; 0: not measured.
struct BandwidthFacts {
  double copy_gb_per_s = 0;                                 ///< of the device's memory, read and written
  double to_device_gb_per_s = 0, from_device_gb_per_s = 0;  ///< between the host's pinned memory and a GPU
};

/// A count of error_counts(), before and after all measurements.
struct CounterFacts {
  std::string name;
  double before = 0, after = 0;
};

/// The link between the first ranks of two nodes.
struct NodePairFacts {
  std::string other_host;
  double bus_gb_per_s = 0;
};

struct RankFacts {
  int rank = 0;
  int node = 0;      ///< nodes are counted from 0
  std::string host;  ///< the node's name in the scheduler
  std::optional<DeviceInfo> gpu;
  std::string gpu_missing;  ///< why no GPU is used; "" when one is used or none was wanted
  bool gpu_broken = false;  ///< a GPU exists, but cannot be used because of gpu_missing
  ProcessorFacts processor;
  GemmFacts gemm;
  ReduceFacts job_reduce;  ///< over all ranks
  TransferFacts gather, scatter;
  BandwidthFacts bandwidth;
  std::vector<CounterFacts> counters;
  ReduceFacts node_reduce;    ///< over the ranks of this node
  ReduceFacts across_reduce;  ///< over the first ranks of all nodes; only these ranks have it
  std::vector<NodePairFacts> pairs;

  /// \return the GPU's name ("NVIDIA A100-SXM4-40GB") or the processor's
  const std::string& device() const { return gpu ? gpu->name : processor.name; }
};

std::string to_text(const LibraryVersion& version);

nlohmann::json to_json(const RankFacts& facts);
/// \throws std::logic_error when `json` did not come from to_json()
RankFacts rank_facts_from_json(const nlohmann::json& json);

}  // namespace fsdp
