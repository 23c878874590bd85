#include "lib/compute/cuda/kernels/band.cuh"
#include "lib/compute/cuda/kernels/launched_kernels.hpp"

namespace fsdp::cuda {
namespace {

dim3 band_rows(const fused::Band& a) { return {static_cast<unsigned>(a.matrices * a.rows), 1, 1}; }

/// Whole warps for a row's eights.
unsigned band_threads(const fused::Band& a) {
  const int eights = (a.keys + 7) / 8;
  return eights >= kBandThreads ? kBandThreads : static_cast<unsigned>((eights + 31) / 32 * 32);
}

}  // namespace

void LaunchedKernels::band_softmax(const fused::Band& a) const {
  with_type(a.type,
            [&](auto type) { launch(cuda::band_softmax<decltype(type)>, band_rows(a), band_threads(a), stream(), a); });
  check_launch();
}

void LaunchedKernels::band_softmax_backward(const fused::Band& a) const {
  with_type(a.type, [&](auto type) {
    launch(cuda::band_softmax_backward<decltype(type)>, band_rows(a), band_threads(a), stream(), a);
  });
  check_launch();
}

}  // namespace fsdp::cuda
