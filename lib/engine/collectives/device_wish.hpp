#pragma once
// --device: the device that a job requests.
#include <array>

#include "lib/base/named_values.hpp"

namespace fsdp {

/// --device: a usable GPU, else the CPU; or one of them by name.
enum class DeviceWish { automatic, cpu, cuda };

inline constexpr std::array kDeviceWishes{NamedValue<DeviceWish>{"auto", DeviceWish::automatic},
                                          NamedValue<DeviceWish>{"cpu", DeviceWish::cpu},
                                          NamedValue<DeviceWish>{"cuda", DeviceWish::cuda}};

}  // namespace fsdp
