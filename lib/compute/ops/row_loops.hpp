#pragma once
// Loops over rows: by the CPU's kernels on threads, and by ATen's operators in pieces; internal to lib/compute/ops.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/compute/kernels/kernels.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/scalar_type.hpp"

namespace fsdp::detail {

inline const void* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
inline float* floats_or_null(const at::Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

inline const std::int32_t* positions_or_null(const TokenPositions& place) {
  return place.positions_N.defined() ? place.positions_N.const_data_ptr<std::int32_t>() : nullptr;
}

/// Rows of about 32768 elements, the least work that is worth a thread.
inline std::int64_t row_grain(std::int64_t row_elements) {
  return std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, row_elements));
}

/// Ops::launch() for bodies that accumulate column sums: each thread has its own copy of `columns`; copies are added in
/// order.
template <std::size_t N, typename Body>
void launch_with_columns(const Ops& ops, std::int64_t rows, std::array<float*, N> columns, std::int64_t dim,
                         const Body& body) {
  const std::int64_t chunks = std::clamp<std::int64_t>(rows * dim / 65536, 1, at::get_num_threads());
  if (chunks == 1) {
    ops.launch(1, 1, [&](std::int64_t, std::int64_t) { body(std::int64_t{0}, rows, columns); });
    return;
  }
  std::vector<float> partial(static_cast<std::size_t>(chunks * static_cast<std::int64_t>(N) * dim), 0.0f);
  const auto copy_of = [&](std::int64_t c, std::size_t k) {
    return partial.data() + (c * static_cast<std::int64_t>(N) + static_cast<std::int64_t>(k)) * dim;
  };
  ops.launch(chunks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t c = first; c < last; ++c) {
      std::array<float*, N> chunk_columns{};
      for (std::size_t k = 0; k < N; ++k) chunk_columns[k] = columns[k] == nullptr ? nullptr : copy_of(c, k);
      body(rows * c / chunks, rows * (c + 1) / chunks, chunk_columns);
    }
  });
  ops.launch(1, 1, [&](std::int64_t, std::int64_t) {
    for (std::int64_t c = 0; c < chunks; ++c) {
      for (std::size_t k = 0; k < N; ++k) {
        if (columns[k] == nullptr) continue;
        const float* from = copy_of(c, k);
        for (std::int64_t j = 0; j < dim; ++j) columns[k][j] += from[j];
      }
    }
  });
}

/// Calls body(first, rows) for pieces of the rows: float32 intermediates of plain operators are several times as large
/// as their inputs, and would otherwise limit the batch size of a GPU.
template <typename Body>
void for_row_pieces(const Ops& ops, std::int64_t rows, std::int64_t row_elements, const Body& body) {
  constexpr std::int64_t kElements = std::int64_t{1} << 24;
  const auto piece = std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, row_elements));
  ops.repeat((rows + piece - 1) / piece, [&](std::int64_t i) { body(i * piece, std::min(piece, rows - i * piece)); });
}

}  // namespace fsdp::detail
