#pragma once
// --device: the device that a job requests.
#include <array>

#include "lib/base/types/named_values.hpp"

namespace fsdp {

/// --device: a usable GPU, else the CPU; or one of them by name.
enum class RequestedDevice { automatic, cpu, cuda };

inline constexpr std::array kRequestedDevices{NamedValue<RequestedDevice>{"auto", RequestedDevice::automatic},
                                              NamedValue<RequestedDevice>{"cpu", RequestedDevice::cpu},
                                              NamedValue<RequestedDevice>{"cuda", RequestedDevice::cuda}};

}  // namespace fsdp
