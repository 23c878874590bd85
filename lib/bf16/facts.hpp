#pragma once
// Facts that one rank collects about bf16 on its device. lib/bf16/verdict.hpp draws the conclusions.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/compute/device/gpus.hpp"

namespace fsdp {

struct ProcessorFacts {
  std::string name;            ///< "AMD EPYC 9654"
  bool avx512_bf16 = false;    ///< x86: has dot products of bf16 pairs
  bool amx_bf16 = false;       ///< x86: has products of bf16 tiles
  bool amx_tile = false;       ///< x86: has the tiles that amx_bf16 needs
  bool amx_permitted = false;  ///< the kernel lets this process use tiles
  std::string amx_refusal;     ///< the kernel's reason for refusing
  bool arm_bf16 = false;       ///< AArch64: BFDOT, BFMMLA
  bool arm_sve_bf16 = false;   ///< AArch64: bf16 instructions in SVE
};

/// Results of timed matrix products; 0: not measured.
struct GemmFacts {
  double bf16_tflops = 0;
  double float32_tflops = 0;       ///< of training's product (lib/compute/ops/gemm.hpp)
  double float32_aten_tflops = 0;  ///< of at::mm
  /// of at::mm, on a processor; bf16_tflops would be this if training did not widen to float32
  double bf16_aten_tflops = 0;
  std::int64_t size = 0;       ///< n of the n x n x n products
  std::string implementation;  ///< oneDNN's implementation for bf16: "brg_matmul:avx512_core_bf16"; "" on a GPU
  bool widened = false;        ///< training multiplies bf16 through float32 here (lib/compute/ops/wide_product.hpp)
  std::string failure;         ///< why bf16 products failed; "" when they worked

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
  ReduceFacts job_reduce;     ///< over all ranks
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

// Finds out which transport NCCL uses by parsing its log, since NCCL has no function that tells.

/// Makes NCCL log to a file of this process and parses the file. If the user has set NCCL_DEBUG_FILE or NCCL_DEBUG,
/// these settings stay and transport_since() returns "".
class NcclLog {
 public:
  /// Sets environment variables: construct it before NCCL is first used.
  /// \param collectives  logs each collective, too, whose lines tell of networks that reduce: for short programs
  explicit NcclLog(bool collectives = true);
  NcclLog(const NcclLog&) = delete;
  NcclLog& operator=(const NcclLog&) = delete;
  /// Removes the log file.
  ~NcclLog();

  /// \return the transports of the connections made since the last call: "NET/IB", "P2P/CUMEM + NET/Socket"; "" when
  /// the log does not tell
  std::string transport_since();
  /// Removes the log file, into which NCCL then writes unseen.
  void remove();

 private:
  std::filesystem::path file_;
  std::uint64_t seen_bytes_ = 0;
};

namespace detail {

/// \return the transports of all "Channel ... via ..." lines, sorted and joined; if there are none, NET/x from the
/// "Using network x" line
std::string transports_in_log(std::string_view text);

}  // namespace detail

// Detects the bf16 features of this machine's processor.

/// Reads /proc/cpuinfo (or CPUID where /proc is not mounted) and the auxiliary vector (AArch64). If there are AMX
/// tiles, requests the kernel's permission to use them (arch_prctl ARCH_REQ_XCOMP_PERM), as oneDNN does before its
/// first product.
ProcessorFacts read_processor();

namespace detail {

/// Extracts the name and the x86 flags from the text of /proc/cpuinfo.
ProcessorFacts parse_cpuinfo(std::string_view text);
/// Sets the AArch64 fields from the value of AT_HWCAP2.
void apply_arm_hwcap2(unsigned long hwcap2, ProcessorFacts& facts);

}  // namespace detail
}  // namespace fsdp
