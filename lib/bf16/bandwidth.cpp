#include "lib/bf16/bandwidth.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <new>

#include "lib/base/types/elapsed.hpp"

namespace fsdp {
namespace {

/// \return bytes of `to` over the time of the fastest copy, in 1e9 bytes a second
double copy_speed(const at::Tensor& to, const at::Tensor& from, const std::function<void()>& synchronize,
                  double seconds) {
  double best_seconds = std::numeric_limits<double>::infinity();
  const auto begin = std::chrono::steady_clock::now();
  do {
    const auto start = std::chrono::steady_clock::now();
    to.copy_(from, /*non_blocking=*/true);
    synchronize();
    best_seconds = std::min(best_seconds, std::max(1e-9, seconds_since(start)));
  } while (seconds_since(begin) < seconds);
  return static_cast<double>(to.nbytes()) / best_seconds / 1e9;
}

}  // namespace

BandwidthFacts measure_bandwidth(c10::Device device, const std::function<void()>& synchronize, double seconds) {
  BandwidthFacts facts;
  try {
    const std::int64_t elements = (device.is_cpu() ? 64 : 256) << 18;  // MiB of float32: more than a core's cache
    const auto options = at::TensorOptions(at::kFloat).device(device);
    const auto from = at::full({elements}, 1.0, options), to = at::full({elements}, 0.0, options);
    facts.copy_gb_per_s = 2 * copy_speed(to, from, synchronize, seconds);  // each byte is read and written
    if (device.is_cpu()) return facts;
    const auto part = to.narrow(0, 0, elements / 4);
    const auto pinned = at::full({part.numel()}, 1.0, at::TensorOptions(at::kFloat)).pin_memory();
    facts.to_device_gb_per_s = copy_speed(part, pinned, synchronize, seconds);
    facts.from_device_gb_per_s = copy_speed(pinned, part, synchronize, seconds);
  } catch (const c10::Error&) {  // what was measured stays
  } catch (const std::bad_alloc&) {
  }
  return facts;
}

}  // namespace fsdp
