#pragma once
// --device: the device that a job requests.
#include <string_view>

namespace fsdp {

/// --device: a usable GPU, else the CPU; or one of them by name.
enum class DeviceWish { automatic, cpu, cuda };

/// auto | cpu | cuda. \throws UsageError naming the choices
DeviceWish parse_device_wish(std::string_view text);

}  // namespace fsdp
