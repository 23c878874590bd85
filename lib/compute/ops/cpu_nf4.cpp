// Matrices of 4 bits on the host: one pass.
#include <ATen/ops/empty.h>

#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

void CpuOps::dequantize_into(at::Tensor& out_OI, const Nf4Matrix& m) const {
  constexpr std::int64_t kBlocksOfAThread = 1024;
  const auto blocks = m.absmax_S.size(0);
  auto scale_S = m.absmax_S;
  if (m.nested_absmax.defined()) {
    scale_S = at::empty({blocks}, m.nested_absmax.options());
    const auto* offset = m.nested_offset.const_data_ptr<float>();
    kernels::Nf4NestedArgs nested{scale_S.data_ptr<float>(), m.absmax_S.const_data_ptr<std::uint8_t>(),
                                  m.nested_absmax.const_data_ptr<float>(), 0.0f, 0};
    launch(1, 1, [&](auto, auto) { nested.offset = *offset; });  // not where nothing is computed
    launch(blocks, kBlocksOfAThread, [&](auto begin, auto end) { kernels::nf4_nested_scales(nested, begin, end); });
  }
  const kernels::Nf4Args args{out_OI.data_ptr(), m.codes_S.const_data_ptr<std::uint8_t>(),
                              scale_S.const_data_ptr<float>(), kernels::nf4_pairs().data(), out_OI.numel()};
  launch(blocks, kBlocksOfAThread,
         [&](auto begin, auto end) { kernels::table().dequantize_nf4(type_of(out_OI), args, begin, end); });
}

}  // namespace fsdp
