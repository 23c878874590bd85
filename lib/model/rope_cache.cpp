#include "lib/model/rope_cache.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "lib/tensor/memory_recorder.hpp"

namespace fsdp {

const ops::RopeTable& RopeCache::up_to(std::int64_t positions, at::Device device) {
  const bool fits = table_.cos_PH.defined() && table_.cos_PH.size(0) >= positions && table_.cos_PH.device() == device;
  if (fits) return table_;
  constexpr std::int64_t kStep = 256;
  const auto rows = (std::max<std::int64_t>(positions, 1) + kStep - 1) / kStep * kStep;
  const auto half = static_cast<std::int64_t>(frequencies_.size());
  // It outlives the layer that happens to need it first.
  const MemoryScope scope(MemoryCategory::workspace);
  const auto on_host = at::TensorOptions(at::kFloat).device(host_device());
  table_.cos_PH = at::empty({rows, half}, on_host);
  table_.sin_PH = at::empty({rows, half}, on_host);
  if (simulating()) return table_;
  auto* cosine = table_.cos_PH.data_ptr<float>();
  auto* sine = table_.sin_PH.data_ptr<float>();
  for (std::int64_t p = 0; p < rows; ++p) {
    for (std::int64_t j = 0; j < half; ++j) {
      // The angle is rounded to float32, as transformers has it; at position 16,384 that is a difference of 5e-4.
      const float angle = static_cast<float>(p) * frequencies_[static_cast<std::size_t>(j)];
      *cosine++ = static_cast<float>(std::cos(static_cast<double>(angle)));
      *sine++ = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  if (!device.is_cpu()) {
    table_.cos_PH = table_.cos_PH.to(device);
    table_.sin_PH = table_.sin_PH.to(device);
  }
  return table_;
}

}  // namespace fsdp
