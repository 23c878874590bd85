#pragma once
// Measures how fast a device copies memory, and how fast data travels between it and the host.
#include <c10/core/Device.h>

#include <functional>

#include "lib/bf16/facts.hpp"

namespace fsdp {

/// Copies between large tensors. Reports the fastest of several, as measure_gemm() does. What cannot be measured is 0.
/// \param synchronize  waits for the device
BandwidthFacts measure_bandwidth(c10::Device device, const std::function<void()>& synchronize, double seconds);

}  // namespace fsdp
