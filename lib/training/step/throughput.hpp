#pragma once
// Peak rates of the hardware, for the percentages in the log.
#include "lib/engine/runtime/model_runtime.hpp"

namespace fsdp {

/// Floating-point operations per second of one rank's device for matrix products in `dtype`: measured on a CPU (the
/// fastest of several shapes by gemm_out(), which is what the engine multiplies with), the data sheet's dense figure
/// for a known GPU, 0 when unknown or hopeless. Measuring takes a sixth of a second, which FSDP_CPU_FLOPS (a number)
/// saves.
double peak_flops(const DeviceChoice& device, at::ScalarType dtype);

}  // namespace fsdp
