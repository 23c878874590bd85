// AdamW with moments of 8 bits on the host: one pass.
#include <cmath>

#include "lib/kernels/eight_bit_code.hpp"
#include "lib/ops/cpu_ops.hpp"
#include "lib/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

namespace {

kernels::AdamW8bitArgs eight_bit_arguments(const AdamW8bitUpdate& u) {
  const auto t = static_cast<double>(u.step);
  kernels::AdamW8bitArgs a;
  a.param = u.param.data_ptr<float>();
  a.grad = u.grad.data_ptr<float>();
  a.state1 = u.state1.data_ptr<std::uint8_t>();
  a.state2 = u.state2.data_ptr<std::uint8_t>();
  a.absmax1 = u.absmax1.data_ptr<float>();
  a.absmax2 = u.absmax2.data_ptr<float>();
  a.code1 = kernels::signed_code().values.data();
  a.code2 = kernels::unsigned_code().values.data();
  a.codes1 = kernels::signed_code().codes.data();
  a.codes2 = kernels::unsigned_code().codes.data();
  a.edges = u.edges.defined() ? u.edges.data_ptr<double>() : nullptr;
  a.elements = u.param.numel();
  a.blocks = u.absmax1.numel();
  a.offset = u.first_element % kernels::kEightBitBlock;
  a.weight_decay_factor = static_cast<float>(1 - u.lr * u.weight_decay);
  a.grad_scale = static_cast<float>(1 / u.grad_divisor);
  a.beta1 = static_cast<float>(u.beta1);
  a.beta2 = static_cast<float>(u.beta2);
  a.eps = static_cast<float>(u.eps);
  a.rest1 = static_cast<float>(1 - u.beta1);
  a.rest2 = static_cast<float>(1 - u.beta2);
  a.step_size = static_cast<float>(u.lr / (1 - std::pow(u.beta1, t)));
  a.denom_correction = static_cast<float>(std::sqrt(1 - std::pow(u.beta2, t)));
  return a;
}

}  // namespace

void CpuOps::adamw_8bit(const AdamW8bitUpdate& u) const {
  constexpr std::int64_t kBlocksOfAThread = 128;
  const auto args = eight_bit_arguments(u);
  launch(args.blocks, kBlocksOfAThread, [&](auto b, auto e) { kernels::table().adamw_8bit(args, b, e); });
}

void CpuOps::adamw_8bit_edges(const AdamW8bitUpdate& u, const at::Tensor& largest) const {
  const auto args = eight_bit_arguments(u);
  auto* out = largest.data_ptr<double>();
  launch(args.blocks > 0 ? 1 : 0, 1, [&](auto b, auto e) {
    if (b == e) return;
    kernels::table().adamw_8bit_largest(args, 0, out);
    kernels::table().adamw_8bit_largest(args, args.blocks - 1, out + 2);
  });
}

}  // namespace fsdp
