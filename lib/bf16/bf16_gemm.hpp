#pragma once
// Measures how fast a device multiplies matrices in bf16 and in float32, and names the code that does it.
#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <string_view>

#include "lib/bf16/facts.hpp"

namespace fsdp {

struct GemmBudget {
  /// approximate time for each of bf16 and float32, each both by training's product and by at::mm
  double seconds_per_type = 0.25;
  std::int64_t largest_size = 8192;  ///< n of the largest n x n matrices
};

/// Times square products on `device`, doubling their size until one takes long enough to be timed. Reports the fastest
/// repetition, because other processes on the same cores can only slow a product down. An exception from LibTorch
/// becomes GemmFacts::failure.
/// \param synchronize  waits for the device
GemmFacts measure_gemm(c10::Device device, const std::function<void()>& synchronize, const GemmBudget& budget);

/// Repeats a bf16 product of the same factors. \return as GemmFacts::wrong; "" where products fail
std::string check_products(c10::Device device, const std::function<void()>& synchronize, int checks);

/// \return oneDNN's implementation of a bf16 product on the CPU ("brg_matmul:avx512_core_bf16"), from its verbose
/// output; "" when LibTorch does not use oneDNN or the output cannot be captured. Redirects stdout for a moment, so no
/// other thread may print meanwhile.
std::string onednn_bf16_implementation();

namespace detail {

/// \return the implementation named in oneDNN's verbose output; with several executions, that of the last one
std::string implementation_of_verbose(std::string_view text);

}  // namespace detail
}  // namespace fsdp
