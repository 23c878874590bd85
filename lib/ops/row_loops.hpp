#pragma once
// How CpuOps call the kernels; internal to lib/ops.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "lib/kernels/kernels.hpp"
#include "lib/tensor/scalar_type.hpp"

namespace fsdp::detail {

inline kernels::Type type_of(const at::Tensor& x) { return kernel_type(x.scalar_type()); }
inline const void* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

using Range = std::function<void(std::int64_t begin, std::int64_t end)>;

/// Pieces of rows that are worth a thread: small work stays on the calling one.
inline std::int64_t row_grain(std::int64_t row_elements) {
  return std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, row_elements));
}

/// For bodies that add to float32 columns: each thread gets its own copy of `columns`, added up in order.
/// \param launch  (n, grain, body) as Ops::launch()
template <std::size_t N, typename Launch, typename Body>
void launch_with_columns(const Launch& launch, std::int64_t rows, std::array<float*, N> columns, std::int64_t dim,
                         const Body& body) {
  const std::int64_t chunks = std::clamp<std::int64_t>(rows * dim / 65536, 1, at::get_num_threads());
  if (chunks == 1) {
    launch(1, 1, [&](std::int64_t, std::int64_t) { body(std::int64_t{0}, rows, columns); });
    return;
  }
  std::vector<float> partial(static_cast<std::size_t>(chunks * static_cast<std::int64_t>(N) * dim), 0.0f);
  const auto copy_of = [&](std::int64_t c, std::size_t k) {
    return partial.data() + (c * static_cast<std::int64_t>(N) + static_cast<std::int64_t>(k)) * dim;
  };
  launch(chunks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t c = first; c < last; ++c) {
      std::array<float*, N> mine{};
      for (std::size_t k = 0; k < N; ++k) mine[k] = columns[k] == nullptr ? nullptr : copy_of(c, k);
      body(rows * c / chunks, rows * (c + 1) / chunks, mine);
    }
  });
  launch(1, 1, [&](std::int64_t, std::int64_t) {
    for (std::int64_t c = 0; c < chunks; ++c) {
      for (std::size_t k = 0; k < N; ++k) {
        if (columns[k] == nullptr) continue;
        const float* from = copy_of(c, k);
        for (std::int64_t j = 0; j < dim; ++j) columns[k][j] += from[j];
      }
    }
  });
}

}  // namespace fsdp::detail
