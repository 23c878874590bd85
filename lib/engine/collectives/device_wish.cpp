#include "lib/engine/collectives/device_wish.hpp"

#include <string>

#include "lib/base/error.hpp"

namespace fsdp {

DeviceWish parse_device_wish(std::string_view text) {
  if (text == "auto") return DeviceWish::automatic;
  if (text == "cpu") return DeviceWish::cpu;
  if (text == "cuda") return DeviceWish::cuda;
  throw UsageError("--device is '" + std::string(text) + "', choose from auto, cpu, cuda");
}

}  // namespace fsdp
