#include <algorithm>

#include "lib/cuda/kernels/launched_kernels.hpp"
#include "lib/cuda/kernels/nf4.cuh"
#include "lib/cuda/kernels/update.cuh"
#include "lib/kernels/eight_bit_code.hpp"
#include "lib/kernels/nf4_code.hpp"

namespace fsdp::cuda {
namespace {

Nf4Tables make_nf4_tables() {
  Nf4Tables tables{};
  std::copy(kernels::kNf4Code.begin(), kernels::kNf4Code.end(), tables.values);
  const auto& code = kernels::signed_code().values;
  std::copy(code.begin(), code.end(), tables.scale_codes);
  return tables;
}

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

void LaunchedKernels::nf4(const fused::Nf4& a) const {
  static const Nf4Tables tables = make_nf4_tables();
  const Nf4Pass pass{a, tables};
  constexpr std::int64_t kOfBlock = kNf4Threads * kNf4OfThread;
  const dim3 grid{static_cast<unsigned>((a.elements + kOfBlock - 1) / kOfBlock), 1, 1};
  with_type(a.type, [&](auto type) {
    launch(dequantize_nf4<decltype(type)>, grid, kNf4Threads, stream(), pass);
  });
  check_launch();
}

}  // namespace fsdp::cuda
