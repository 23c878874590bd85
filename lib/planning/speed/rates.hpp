#pragma once
// What a device reaches, a GPU or a processor's core: of the data sheet, as measured, or as earlier runs have shown.
// Free of LibTorch.
#include <array>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "lib/base/work.hpp"
#include "lib/compute/device/gpus.hpp"

namespace fsdp {

/// Of a GPU, or of one core of a host, but for transfers.
struct DeviceRates {
  std::string source;  ///< where they are from, for people: "a100-80g's data sheet"
  bool is_gpu = false;
  /// FLOP/s of large products.
  double float32_flops = 0, half_flops = 0;
  /// Of a device's data sheet, or those above: what utilization is a part of.
  double float32_peak = 0, half_peak = 0;
  double attention_part = 1;           ///< of that speed, by attention's kernels
  double bytes_per_second = 0;         ///< of passes over memory
  double update_bytes_per_second = 0;  ///< of an optimizer's, which compute little
  double shared_part = 1;              ///< of its speed that is left of a core which several ranks share
  double alone_factor = 1;             ///< how much faster passes are while the host's other cores idle
  int multiprocessors = 0;             ///< a product is cut into tiles for so many at once; 0: it is not
  double launch_seconds = 0;           ///< the host's, for one operation
  double operation_seconds = 0;        ///< the least that an operation takes
  // Transfers; one direction.
  double link_bytes_per_second = 0;     ///< of a rank, to others of its node
  double network_bytes_per_second = 0;  ///< of a node
  double host_bytes_per_second = 0;     ///< of a GPU, from and to its host
  double latency_seconds = 0;           ///< of a transfer with each rank, inside a node
  double network_latency_seconds = 0;   ///< likewise, across nodes
  /// What earlier runs took, in parts of what these rates say.
  std::array<double, kNumStepParts> factors{1, 1, 1, 1, 1, 1};

  double flops(bool is_half) const { return is_half ? half_flops : float32_flops; }
  double peak(bool is_half) const { return is_half ? half_peak : float32_peak; }
};

/// Of the table, with what large products and passes reach of it.
DeviceRates rates_of_gpu(const GpuFacts& gpu);
/// Of a core, from the speed of its products; of one that is 0 the other tells.
DeviceRates rates_of_processor(double float32_flops, double half_flops, std::string source);

/// From `fsdp-bf16check --json`: products of its slowest rank, bandwidths inside and between nodes where it saw them.
/// What it does not know stays.
/// \param threads  of a rank of that check, on a host
/// \return the device's name. \throws FormatError naming file and key, MissingInput
std::string take_check(const std::filesystem::path& file, DeviceRates& rates, int threads);

nlohmann::json to_json(const DeviceRates& rates);
/// \throws FormatError naming `where`
DeviceRates rates_from_json(const nlohmann::json& json, const std::string& where);

}  // namespace fsdp
