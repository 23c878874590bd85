#include <algorithm>

#include "lib/compute/cuda/kernels/fp8.cuh"
#include "lib/compute/cuda/kernels/launched_kernels.hpp"
#include "lib/compute/cuda/kernels/nf4.cuh"
#include "lib/compute/kernels/eight_bit_code.hpp"
#include "lib/compute/kernels/nf4_code.hpp"

namespace fsdp::cuda {
namespace {

Nf4Tables make_nf4_tables() {
  Nf4Tables tables{};
  std::copy(kernels::kNf4Code.begin(), kernels::kNf4Code.end(), tables.values);
  const auto& code = kernels::signed_code().values;
  std::copy(code.begin(), code.end(), tables.scale_codes);
  return tables;
}

dim3 fp8_tiles(std::int64_t columns, std::int64_t rows) {
  const auto tiles = [](std::int64_t n) { return (n + kFp8Tile - 1) / kFp8Tile; };
  return {static_cast<unsigned>(tiles(columns)), static_cast<unsigned>(std::min<std::int64_t>(tiles(rows), 65535)), 1};
}

}  // namespace

void LaunchedKernels::nf4(const fused::Nf4& a) const {
  static const Nf4Tables tables = make_nf4_tables();
  const Nf4Pass pass{a, tables};
  constexpr std::int64_t kOfBlock = kNf4Threads * kNf4OfThread;
  const dim3 grid{static_cast<unsigned>((a.elements + kOfBlock - 1) / kOfBlock), 1, 1};
  with_type(a.type, [&](auto type) { launch(dequantize_nf4<decltype(type)>, grid, kNf4Threads, stream(), pass); });
  check_launch();
}

void LaunchedKernels::fp8_largest(const fused::Fp8& a) const {
  const dim3 grid{static_cast<unsigned>(a.blocks), 1, 1};
  with_type(a.type, [&](auto type) { launch(cuda::fp8_largest<decltype(type)>, grid, kFp8Threads, stream(), a); });
  check_launch();
}

void LaunchedKernels::fp8_cast(const fused::Fp8& a) const {
  const dim3 grid = fp8_tiles(a.columns, a.padded_rows);
  with_type(a.type, [&](auto type) {
    using T = decltype(type);
    launch(a.e5m2 ? cuda::fp8_cast<T, true> : cuda::fp8_cast<T, false>, grid, kFp8Threads, stream(), a);
  });
  check_launch();
}

void LaunchedKernels::fp8_transpose(const fused::Fp8Transpose& a) const {
  const dim3 grid = fp8_tiles(a.columns, a.rows);
  launch(cuda::fp8_transpose, grid, kFp8Threads, stream(), a);
  check_launch();
}

}  // namespace fsdp::cuda
