#pragma once
// How fast a device multiplies in bf16 and in float32, and through which code.
#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <string_view>

#include "lib/bf16/facts.hpp"

namespace fsdp {

struct GemmBudget {
  double seconds_per_type = 0.25;    ///< about that on each of bf16 and float32, as training does it and by at::mm
  std::int64_t largest_size = 8192;  ///< of the square matrices
};

/// Times square products on `device`, doubling their size until one takes long enough to be timed. The best of all
/// repetitions counts: another process on the same cores slows some of them down, nothing speeds one up.
/// \param synchronize  waits for the device
/// What LibTorch throws becomes GemmFacts::failure.
GemmFacts measure_gemm(c10::Device device, const std::function<void()>& synchronize, const GemmBudget& budget);

/// What oneDNN takes for a bf16 product on the CPU ("brg_matmul:avx512_core_bf16"), from its own verbose line; "" when
/// LibTorch does without oneDNN, or its line cannot be had. Catches stdout for a moment: call it while no other thread
/// prints.
std::string onednn_bf16_implementation();

namespace detail {

/// The implementation in oneDNN's verbose output; of several executions the last.
std::string implementation_of_verbose(std::string_view text);

}  // namespace detail
}  // namespace fsdp
