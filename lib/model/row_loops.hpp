#pragma once
// How the passes of lib/model call the CPU kernels; internal to lib/model.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <vector>

#include "lib/kernels/kernels.hpp"
#include "lib/tensor/memory_recorder.hpp"
#include "lib/tensor/scalar_type.hpp"

namespace fsdp::ops::detail {

/// False on other devices and inside a ReferenceScope.
bool use_kernels(const at::Tensor& x);

inline kernels::Type type_of(const at::Tensor& x) { return kernel_type(x.scalar_type()); }
inline const void* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

/// Rows split over ATen's threads; small work stays on the calling thread. A simulated run has nothing to compute.
template <typename Body>
void for_rows(std::int64_t rows, std::int64_t row_elements, const Body& body) {
  if (simulating()) return;
  const std::int64_t grain = std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, row_elements));
  at::parallel_for(0, rows, grain, body);
}

/// As for_rows, for bodies that add to float32 columns: each thread gets its own copy of `columns`, added up in order.
template <std::size_t N, typename Body>
void for_rows_with_columns(std::int64_t rows, std::array<float*, N> columns, std::int64_t dim, const Body& body) {
  if (simulating()) return;
  const std::int64_t chunks = std::clamp<std::int64_t>(rows * dim / 65536, 1, at::get_num_threads());
  if (chunks == 1) {
    body(std::int64_t{0}, rows, columns);
    return;
  }
  std::vector<float> partial(static_cast<std::size_t>(chunks * static_cast<std::int64_t>(N) * dim), 0.0f);
  at::parallel_for(0, chunks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t c = first; c < last; ++c) {
      std::array<float*, N> mine{};
      for (std::size_t k = 0; k < N; ++k) {
        const auto at = (c * static_cast<std::int64_t>(N) + static_cast<std::int64_t>(k)) * dim;
        mine[k] = columns[k] == nullptr ? nullptr : partial.data() + at;
      }
      body(rows * c / chunks, rows * (c + 1) / chunks, mine);
    }
  });
  for (std::int64_t c = 0; c < chunks; ++c) {
    for (std::size_t k = 0; k < N; ++k) {
      if (columns[k] == nullptr) continue;
      const float* from = partial.data() + (c * static_cast<std::int64_t>(N) + static_cast<std::int64_t>(k)) * dim;
      for (std::int64_t j = 0; j < dim; ++j) columns[k][j] += from[j];
    }
  }
}

}  // namespace fsdp::ops::detail
