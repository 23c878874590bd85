#include "lib/compute/cuda/kernels/launched_kernels.hpp"
#include "lib/compute/cuda/kernels/norm.cuh"
#include "lib/compute/cuda/kernels/norm_wide.cuh"

namespace fsdp::cuda {
namespace {

/// As few threads as hold a row, `vectors` times eight elements each.
unsigned threads_for(int dim, int vectors) {
  const int threads = (dim + 8 * vectors - 1) / (8 * vectors);
  return static_cast<unsigned>((threads + 31) / 32 * 32);
}

/// body(Vectors): the fewest eights for each of at most kNormThreads threads.
template <int kVectors>
struct Vectors {
  static constexpr int count = kVectors;
};
template <typename Body>
void with_vectors(int dim, const Body& body) {
  dim <= 8 * kNormThreads ? body(Vectors<1>{}) : body(Vectors<2>{});
}

/// Rows that registers hold.
bool is_narrow(int dim) { return dim <= 16 * kNormThreads; }

}  // namespace

void LaunchedKernels::norm(const fused::Norm& a) const {
  const dim3 grid{static_cast<unsigned>(a.rows), 1, 1};
  const bool layer_norm = a.mean_N != nullptr;
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    if (!is_narrow(a.dim))
      return launch(layer_norm ? norm_forward_wide<T, true> : norm_forward_wide<T, false>, grid, kNormThreads, stream(),
                    a);
    with_vectors(a.dim, [&](auto vectors) {
      constexpr int kVectors = decltype(vectors)::count;
      launch(layer_norm ? norm_forward<T, kVectors, true> : norm_forward<T, kVectors, false>, grid,
             threads_for(a.dim, kVectors), stream(), a);
    });
  });
  check_launch();
}

void LaunchedKernels::norm_backward(const fused::NormBackwardPass& a) const {
  const dim3 grid{static_cast<unsigned>(fused::norm_blocks(a.rows)), 1, 1};
  const bool layer_norm = a.mean_N != nullptr;
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    if (!is_narrow(a.dim))
      return launch(layer_norm ? norm_backward_wide<T, true> : norm_backward_wide<T, false>, grid, kNormThreads,
                    stream(), a);
    with_vectors(a.dim, [&](auto vectors) {
      constexpr int kVectors = decltype(vectors)::count;
      launch(layer_norm ? cuda::norm_backward<T, kVectors, true> : cuda::norm_backward<T, kVectors, false>, grid,
             threads_for(a.dim, kVectors), stream(), a);
    });
  });
  check_launch();
}

}  // namespace fsdp::cuda
