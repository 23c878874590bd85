#include "lib/compute/cuda/kernels/cross_entropy.cuh"
#include "lib/compute/cuda/kernels/embed.cuh"
#include "lib/compute/cuda/kernels/launched_kernels.hpp"

namespace fsdp::cuda {
namespace {

dim3 rows_by_columns(std::int64_t rows, int dim) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>((dim + kEmbedColumns - 1) / kEmbedColumns), 1};
}

/// Whole warps for as many items, at most kLossThreads.
unsigned threads_for(std::int64_t items) {
  return items >= kLossThreads ? kLossThreads : static_cast<unsigned>((items + 31) / 32 * 32);
}

}  // namespace

void LaunchedKernels::embed(const fused::Embed& a) const {
  with_type(a.type, [&](auto type) {
    launch(cuda::embed<decltype(type)>, rows_by_columns(a.rows, a.dim), kEmbedThreads, stream(), a);
  });
  check_launch();
}

void LaunchedKernels::embed_backward(const fused::EmbedBackward& a) const {
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    if (a.ids_N != nullptr) {
      launch(embed_backward_tokens<T>, rows_by_columns(a.rows, a.dim), kEmbedThreads, stream(), a);
    } else {
      const auto positions = a.rows < a.row_length ? a.rows : a.row_length;
      launch(embed_backward_positions<T>, rows_by_columns(positions, a.dim), kEmbedThreads, stream(), a);
    }
  });
  check_launch();
}

void LaunchedKernels::cross_entropy(const fused::CrossEntropy& a) const {
  with_type(a.type, [&](auto type) {
    const dim3 grid{static_cast<unsigned>(a.rows), 1, 1};
    launch(cuda::cross_entropy<decltype(type)>, grid, threads_for((a.width + 7) / 8), stream(), a);
  });
  check_launch();
  launch(sum_losses, dim3{1, 1, 1}, threads_for(a.rows), stream(), a);
  check_launch();
}

}  // namespace fsdp::cuda
