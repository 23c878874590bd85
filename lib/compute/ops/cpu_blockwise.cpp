// Updates whose moments take few bits, on the host: one pass.
#include <cmath>

#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

namespace {

kernels::BlockwiseArgs blockwise_arguments(const BlockwiseUpdate& u) {
  const auto moment = [&](const BlockwiseMoment& m, bool is_signed) -> kernels::BlockwiseMoment {
    if (!m.codes.defined()) return {};
    return {m.codes.data_ptr<std::uint8_t>(), m.scales.data_ptr<float>(), &kernels::moment_code(u.format, is_signed)};
  };
  kernels::BlockwiseArgs a;
  a.lion = u.lion;
  a.param = u.param.data_ptr<float>();
  a.grad = u.grad.data_ptr<float>();
  a.first = moment(u.first, true);
  a.second = moment(u.second, false);
  a.edges = u.edges.defined() ? u.edges.data_ptr<double>() : nullptr;
  a.elements = u.param.numel();
  a.blocks = u.first.scales.numel();
  a.block = kernels::moment_block(u.format);
  a.offset = u.first_element % a.block;
  a.weight_decay_factor = static_cast<float>(1 - u.lr * u.weight_decay);
  a.grad_scale = static_cast<float>(1 / u.grad_divisor);
  a.beta1 = static_cast<float>(u.beta1);
  a.beta2 = static_cast<float>(u.beta2);
  a.rest1 = static_cast<float>(1 - u.beta1);
  a.rest2 = static_cast<float>(1 - u.beta2);
  a.step_size = static_cast<float>(u.lion ? u.lr : u.step_size() * u.correction());
  a.eps = static_cast<float>(u.eps * u.correction());
  return a;
}

}  // namespace

void CpuOps::blockwise(const BlockwiseUpdate& u) const {
  constexpr std::int64_t kBlocksOfAThread = 128;
  const auto args = blockwise_arguments(u);
  launch(args.blocks, kBlocksOfAThread, [&](auto b, auto e) { kernels::table().blockwise(args, b, e); });
}

void CpuOps::blockwise_edges(const BlockwiseUpdate& u, const at::Tensor& largest) const {
  const auto args = blockwise_arguments(u);
  auto* out = largest.data_ptr<double>();
  launch(args.blocks > 0 ? 1 : 0, 1, [&](auto b, auto e) {
    if (b == e) return;
    kernels::table().blockwise_largest(args, 0, out);
    kernels::table().blockwise_largest(args, args.blocks - 1, out + 2);
  });
}

}  // namespace fsdp
