// Quantization to NF4 by the kernels.
#include "lib/compute/ops/nf4.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "lib/compute/kernels/eight_bit_code.hpp"
#include "lib/compute/kernels/kernels.hpp"
#include "lib/compute/tensor/parallel.hpp"

namespace fsdp {
namespace {

using kernels::kEightBitBlock, kernels::kNf4Block;

std::int64_t blocks_of(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }

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

}  // namespace fsdp
