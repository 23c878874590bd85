#pragma once
// --offload-optimizer: where master weights and optimizer states are kept between steps. Free of LibTorch.
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

struct OffloadConfig {
  enum class Place {
    device,
    cpu,  ///< the host's memory; the optimizer runs there
    nvme  ///< a disk of each node, of which a part at a time is in the host's memory
  };
  Place place = Place::device;
  std::string directory;         ///< of nvme
  std::int64_t group_bytes = 0;  ///< of states moved together there; 0: as usual

  bool on_disk() const { return place == Place::nvme; }
};

/// none, cpu or nvme:DIR. \throws UsageError naming these
OffloadConfig parse_offload(std::string_view text);
/// As parse_offload() takes it.
std::string to_string(const OffloadConfig& offload);

}  // namespace fsdp
