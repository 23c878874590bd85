#pragma once
// Sustained speeds of a device (a GPU or one core of a processor): from the data sheet, a measurement, or earlier runs.
// Free of LibTorch.
#include <array>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "lib/base/types/work.hpp"
#include "lib/compute/device/gpus.hpp"

namespace fsdp {
namespace detail {

// Validates numbers in JSON files that other programs may have written. Internal to lib/planning/speed.

/// \throws FormatError naming `where` and the key, unless it is a number from 0 to 1e18
double number_in(const nlohmann::json& json, const char* key, const std::string& where);
/// \throws FormatError naming `where` and the key, unless it is an object
const nlohmann::json& object_in(const nlohmann::json& json, const char* key, const std::string& where);

}  // namespace detail

/// Rates of a GPU or of one core of a host. Transfer rates are those of a rank or node, as noted.
struct DeviceRates {
  std::string source;  ///< origin of the rates, for messages: "a100-80g's data sheet"
  bool is_gpu = false;
  /// Sustained FLOP/s of large matrix products.
  double float32_flops = 0, half_flops = 0;
  /// Peak FLOP/s from the data sheet, or else the sustained rates above: the denominator of utilization.
  double float32_peak = 0, half_peak = 0;
  double attention_part = 1;           ///< fraction of the product rate that attention kernels reach
  double bytes_per_second = 0;         ///< memory bandwidth of elementwise passes
  double update_bytes_per_second = 0;  ///< memory bandwidth of the optimizer's update, which computes little
  double shared_part = 1;              ///< fraction of a core's speed that is left when several ranks share the core
  double alone_factor = 1;             ///< speed-up of memory-bound passes when the host's other cores are idle
  int multiprocessors = 0;             ///< tiles of a product that run at once; 0: products are not tiled (a host)
  double launch_seconds = 0;           ///< host time to launch one operation
  double operation_seconds = 0;        ///< minimum duration of an operation
  // Transfers, bandwidth in one direction.
  double link_bytes_per_second = 0;     ///< from a rank to the other ranks of its node
  double network_bytes_per_second = 0;  ///< from a node to the other nodes
  double host_bytes_per_second = 0;     ///< between a GPU and its host
  double latency_seconds = 0;           ///< per peer rank in the node
  double network_latency_seconds = 0;   ///< per peer rank, across nodes
  /// Time that earlier runs took for each part, as a multiple of the time that these rates predict.
  std::array<double, kNumStepParts> factors{1, 1, 1, 1, 1, 1};

  double flops(bool is_half) const { return is_half ? half_flops : float32_flops; }
  double peak(bool is_half) const { return is_half ? half_peak : float32_peak; }
};

/// \return the data sheet's rates of the GPU table, scaled to what large products and passes reach in practice
DeviceRates rates_of_gpu(const GpuFacts& gpu);
/// Builds a core's rates from the speed of its products. If one of the two speeds is 0, it is derived from the other.
DeviceRates rates_of_processor(double float32_flops, double half_flops, std::string source);

/// Overwrites `rates` with the measurements of `fsdp-bf16check --json`: the product speeds of the slowest rank, and the
/// bandwidths inside and between nodes where they were measured. Leaves all other rates as they are.
/// \param threads  threads of each rank of that check, on a host
/// \return the device's name. \throws FormatError naming file and key, MissingInput
std::string take_check(const std::filesystem::path& file, DeviceRates& rates, int threads);

nlohmann::json to_json(const DeviceRates& rates);
/// \throws FormatError naming `where`
DeviceRates rates_from_json(const nlohmann::json& json, const std::string& where);

}  // namespace fsdp
