#include <algorithm>

#include "lib/compute/cuda/kernels/launched_kernels.hpp"
#include "lib/compute/cuda/kernels/update.cuh"

namespace fsdp::cuda {
namespace {

template <typename Pass>
dim3 grid_of(const Pass& a) {
  return {static_cast<unsigned>(a.first_block[a.tensors]), 1, 1};
}

}  // namespace

bool LaunchedKernels::have_code() {
#ifdef __CUDACC__
  cudaFuncAttributes unused{};
  if (cudaFuncGetAttributes(&unused, cuda::total_sum) == cudaSuccess) return true;
  static_cast<void>(cudaGetLastError());
  return false;
#else
  return true;
#endif
}

void LaunchedKernels::sum_squares(const fused::SumSquares& a) const {
  launch(cuda::sum_squares, grid_of(a), kUpdateThreads, stream(), a);
  check_launch();
}

void LaunchedKernels::total_sum(const fused::TotalSum& a) const {
  launch(cuda::total_sum, dim3{1, 1, 1}, kUpdateThreads, stream(), a);
  check_launch();
}

void LaunchedKernels::decide_step(const fused::DecideStep& a) const {
  launch(cuda::decide_step, dim3{1, 1, 1}, 1, stream(), a);
  check_launch();
}

void LaunchedKernels::adamw(const fused::AdamW& a) const {
  with_type(a.published_type,
            [&](auto type) { launch(cuda::adamw<decltype(type)>, grid_of(a), kUpdateThreads, stream(), a); });
  check_launch();
}

void LaunchedKernels::publish(const fused::Publish& a) const {
  with_type(a.type, [&](auto type) { launch(cuda::publish<decltype(type)>, grid_of(a), kUpdateThreads, stream(), a); });
  check_launch();
}

void LaunchedKernels::widen(const fused::Widen& a) const {
  with_type(a.type, [&](auto type) { launch(widen_sums<decltype(type)>, grid_of(a), kUpdateThreads, stream(), a); });
  check_launch();
}

}  // namespace fsdp::cuda
