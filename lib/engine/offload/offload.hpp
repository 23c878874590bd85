#pragma once
// --offload-optimizer: where master weights and optimizer states are kept between steps. Free of LibTorch.
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

struct OffloadConfig {
  enum class Place {
    device,
    cpu,  ///< in host memory; the optimizer also runs on the host
    nvme  ///< on a local disk of each node; only a part at a time is in host memory
  };
  Place place = Place::device;
  std::string directory;         ///< directory on the disk, for nvme
  std::int64_t group_bytes = 0;  ///< bytes of states that are transferred together, for nvme; 0: default

  bool on_disk() const { return place == Place::nvme; }
};

/// Parses none, cpu or nvme:DIR. \throws UsageError naming these choices
OffloadConfig parse_offload(std::string_view text);
/// Formats the config as parse_offload() accepts it.
std::string to_string(const OffloadConfig& offload);

}  // namespace fsdp
