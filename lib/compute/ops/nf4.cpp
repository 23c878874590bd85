// Quantization to NF4 by the kernels, and dequantization by ATen's operators.
#include "lib/compute/ops/nf4.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "lib/compute/kernels/eight_bit_code.hpp"
#include "lib/compute/kernels/kernels.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/compute/tensor/parallel.hpp"

namespace fsdp {
namespace {

using kernels::kEightBitBlock, kernels::kNf4Block;

std::int64_t blocks_of(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }

/// Copies a table of the host to the device of `like`.
template <std::size_t N>
at::Tensor table_beside(const at::Tensor& like, const std::array<float, N>& values) {
  auto* data = const_cast<float*>(values.data());  // NOLINT: from_blob wants it so, nothing writes there
  return at::from_blob(data, {static_cast<std::int64_t>(N)}, at::TensorOptions(at::kFloat)).to(like.device());
}

}  // namespace

Nf4Blocks quantize_nf4(const at::Tensor& values) {
  const auto n = values.numel(), blocks = blocks_of(n, kNf4Block);
  Nf4Blocks made{at::empty({blocks, kernels::kNf4Block_bytes}, at::kByte), at::empty({blocks}, at::kFloat)};
  const kernels::Nf4QuantizeArgs args{made.codes.data_ptr<std::uint8_t>(), made.absmax.data_ptr<float>(),
                                      values.const_data_ptr<float>(), n};
  constexpr std::int64_t kBlocksOfAThread = 1024;
  parallel_for(blocks, kBlocksOfAThread,
               [&](auto begin, auto end) { kernels::table().quantize_nf4(args, begin, end); });
  return made;
}

NestedScales quantize_scales(const at::Tensor& absmax) {
  const auto n = absmax.numel();
  NestedScales made{at::empty({n}, at::kByte), at::empty({blocks_of(n, kEightBitBlock)}, at::kFloat), {}};
  made.offset = at::full({1},
                         kernels::nf4_nest_scales({made.codes.data_ptr<std::uint8_t>(), made.absmax.data_ptr<float>(),
                                                   absmax.const_data_ptr<float>(), n}),
                         at::kFloat);
  return made;
}

at::Tensor Ops::dequantize(const Nf4Matrix& matrix, at::ScalarType dtype) const {
  const MemoryScope scope(MemoryCategory::workspace);
  auto out_OI = at::empty({matrix.rows, matrix.columns}, matrix.codes_S.options().dtype(dtype));
  dequantize_into(out_OI, matrix);
  return out_OI;
}

void Ops::dequantize_into(at::Tensor& out_OI, const Nf4Matrix& m) const {
  auto scale_S = m.absmax_S;
  const auto blocks = scale_S.size(0);
  if (m.nested_absmax.defined()) {
    const auto code = table_beside(scale_S, kernels::signed_code().values);
    const auto nested_S = m.nested_absmax.unsqueeze(1).expand({-1, kEightBitBlock}).reshape({-1}).narrow(0, 0, blocks);
    scale_S = code.index({scale_S.to(at::kInt)}).mul_(nested_S).add_(m.nested_offset);
  }
  constexpr std::int64_t kBlocksAtOnce = 16384;
  const auto code = table_beside(m.codes_S, kernels::kNf4Code);
  const auto flat = out_OI.view({-1});
  repeat(blocks_of(blocks, kBlocksAtOnce), [&](std::int64_t chunk) {
    const auto first = chunk * kBlocksAtOnce, count = std::min(kBlocksAtOnce, blocks - first);
    const auto codes = m.codes_S.narrow(0, first, count);
    auto indices = at::empty({count, kernels::kNf4Block_bytes, 2}, codes.options().dtype(at::kInt));
    indices.select(2, 0).copy_(codes.bitwise_right_shift(4));
    indices.select(2, 1).copy_(codes.bitwise_and(15));
    auto values = code.index({indices.view({-1})}).view({count, kNf4Block});
    values.mul_(scale_S.narrow(0, first, count).unsqueeze(1));
    const auto elements = std::min(count * kNf4Block, flat.numel() - first * kNf4Block);
    flat.narrow(0, first * kNf4Block, elements).copy_(values.view({-1}).narrow(0, 0, elements));
  });
}

}  // namespace fsdp
