// Histograms of the bits of float32: what order statistics over several ranks are found by.
#include <ATen/ops/bincount.h>
#include <ATen/ops/bitwise_right_shift.h>

#include <mutex>
#include <vector>

#include "lib/compute/ops/cpu_ops.hpp"

namespace fsdp {

void Ops::count_bits(const GradPart& part, BitRange range, std::span<double> counts) const {
  if (part.elements == 0) return;
  if (on_host() || is_on_host(part.grad)) return host_ops().count_bits(part, range, counts);
  // 64 bits: shifted by all 32, nothing is left.
  auto bits = part.grad.view({-1}).narrow(0, 0, part.elements).view(at::kInt).to(at::kLong);
  bits = bits.masked_select(at::bitwise_right_shift(bits, range.shift + range.bits).eq(std::int64_t{range.prefix}));
  const auto mask = (std::int64_t{1} << range.bits) - 1;
  const auto digits = at::bitwise_right_shift(bits, range.shift).bitwise_and(mask);
  const auto found = read(at::bincount(digits, {}, mask + 1).to(at::kDouble));
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += found[i];
}

void CpuOps::count_bits(const GradPart& part, BitRange range, std::span<double> counts) const {
  constexpr std::int64_t kGrain = std::int64_t{1} << 18;
  std::mutex mutex;
  launch(part.elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
    const auto* values = static_cast<const std::uint32_t*>(part.grad.const_data_ptr());
    const std::uint32_t mask = (std::uint32_t{1} << range.bits) - 1;
    std::vector<std::int64_t> mine(counts.size(), 0);
    for (auto i = begin; i < end; ++i) {
      const std::uint64_t bits = values[i];
      if (bits >> (range.shift + range.bits) == range.prefix) ++mine[bits >> range.shift & mask];
    }
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < mine.size(); ++i) counts[i] += static_cast<double>(mine[i]);
  });
}

}  // namespace fsdp
