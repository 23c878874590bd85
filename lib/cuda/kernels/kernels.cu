// What host code launches, compiled by nvcc for every architecture of CMakeLists.txt.
#include "lib/cuda/kernels/kernels.hpp"

#include <algorithm>

#include "lib/cuda/kernels/nf4.cuh"
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

}  // namespace

cudaError_t launch_dequantize_nf4(Float type, const Nf4Launch& a, cudaStream_t stream) {
  if (a.elements == 0) return cudaSuccess;
  static const Nf4Tables tables = make_nf4_tables();
  constexpr std::int64_t kOfBlock = kNf4Threads * kNf4OfThread;
  const auto grid = static_cast<unsigned>((a.elements + kOfBlock - 1) / kOfBlock);
  const Nf4Scales scales{a.absmax, a.codes, a.nested, a.offset};
  const auto launch = [&](auto* out) {
    dequantize_nf4<<<grid, kNf4Threads, 0, stream>>>(out, a.packed, scales, tables, static_cast<long long>(a.elements));
  };
  if (type == Float::f32) launch(static_cast<float*>(a.out));
  if (type == Float::bf16) launch(static_cast<__nv_bfloat16*>(a.out));
  if (type == Float::fp16) launch(static_cast<__half*>(a.out));
  return cudaGetLastError();
}

}  // namespace fsdp::cuda
