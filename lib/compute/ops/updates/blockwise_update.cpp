// AdamW and Lion with quantized moments: one pass by kernels; by ATen's operators some blocks at a time.
#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "lib/compute/ops/fused_args.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/ops/row_loops.hpp"
#include "lib/compute/ops/updates/blockwise_numbers.hpp"

namespace fsdp {

using namespace detail;

namespace {

constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 22;

/// View of blocks [begin, end) of an update.
class Blocks {
 public:
  Blocks(const BlockwiseUpdate& update, std::int64_t begin, std::int64_t end)
      : size_(kernels::moment_block(update.format)),
        begin_(begin),
        end_(end),
        offset_(update.first_element % size_),
        elements_(update.param.numel()) {}

  /// [blocks, elements of a block]; zero outside this rank's shard.
  at::Tensor of(const at::Tensor& flat) const { return padded(here(flat)); }
  at::Tensor here(const at::Tensor& flat) const { return flat.narrow(0, first(), last() - first()); }
  /// Codes of this rank's elements, int32.
  at::Tensor codes_here(const at::Tensor& codes, bool packed) const {
    if (!packed) return here(codes).to(at::kInt);
    const auto bytes = codes.narrow(0, first() / 2, (last() - first()) / 2);
    auto numbers = at::empty({bytes.numel(), 2}, bytes.options().dtype(at::kInt));
    numbers.select(1, 0).copy_(bytes.bitwise_right_shift(4));
    numbers.select(1, 1).copy_(bytes.bitwise_and(15));
    return numbers.view({-1});
  }
  void put_codes(const at::Tensor& codes, const at::Tensor& blocks, bool packed) const {
    const auto numbers = part(blocks.view({-1}));
    if (!packed) {
      here(codes).copy_(numbers);
      return;
    }
    const auto pairs = numbers.view({-1, 2});
    codes.narrow(0, first() / 2, pairs.size(0)).copy_(pairs.select(1, 0).mul(16).add_(pairs.select(1, 1)));
  }
  at::Tensor padded(const at::Tensor& values) const {
    auto blocks = at::zeros({end_ - begin_, size_}, values.options());
    part(blocks.view({-1})).copy_(values);
    return blocks;
  }
  void put(const at::Tensor& flat, const at::Tensor& blocks) const { here(flat).copy_(part(blocks.view({-1}))); }
  at::Tensor scales(const at::Tensor& scales) const { return scales.narrow(0, begin_, end_ - begin_).unsqueeze(1); }

 private:
  std::int64_t first() const { return std::max<std::int64_t>(0, begin_ * size_ - offset_); }
  std::int64_t last() const { return std::min(elements_, end_ * size_ - offset_); }
  at::Tensor part(const at::Tensor& blocks) const {
    return blocks.narrow(0, first() - (begin_ * size_ - offset_), last() - first());
  }

  std::int64_t size_, begin_, end_, offset_, elements_;
};

struct Moments {
  at::Tensor first, second;  ///< for Lion, second is the update direction
};

/// Absolute values of moments; abs() has no kernel for meta tensors.
at::Tensor sizes_of(const at::Tensor& moments) { return at::maximum(moments, moments.neg()); }

class Blockwise {
 public:
  Blockwise(const Ops& ops, const BlockwiseUpdate& update) : ops_(ops), u_(update) {}

  Moments new_moments(const Blocks& blocks) const {
    const auto grad = blocks.of(u_.grad).div_(u_.grad_divisor);
    auto first = old(blocks, u_.first, true);
    if (u_.lion) {
      auto direction = first.mul(u_.beta1).add_(grad, 1 - u_.beta1);
      return {first.mul_(u_.beta2).add_(grad, 1 - u_.beta2), std::move(direction)};
    }
    return {first.mul_(u_.beta1).add_(grad, 1 - u_.beta1),
            old(blocks, u_.second, false).mul_(u_.beta2).addcmul_(grad, grad, 1 - u_.beta2)};
  }

  void step(const Blocks& blocks, const Moments& moments) const {
    auto param = blocks.of(u_.param).mul_(1 - u_.lr * u_.weight_decay);
    if (u_.lion) {
      param.sub_(moments.second.sign(), u_.lr);
    } else {
      param.addcdiv_(moments.first, moments.second.sqrt().add_(u_.eps * u_.correction()),
                     -u_.step_size() * u_.correction());
    }
    blocks.put(u_.param, param);
  }

  void store(const Blocks& blocks, const at::Tensor& values, const at::Tensor& largest, const BlockwiseMoment& moment,
             bool is_signed) const {
    const auto& code = kernels::moment_code(u_.format, is_signed);
    const auto scale = largest.clamp_min(code.least_scale).unsqueeze(1);
    blocks.scales(moment.scales).copy_(scale);
    auto x = code.divides ? values.div(scale) : values.mul(scale.reciprocal().masked_fill_(scale == 0, 0));
    x.clamp_(-1, 1);
    auto codes = numbers_of(x, table(code.thresholds));
    codes.masked_fill_(scale == 0, 0);
    blocks.put_codes(moment.codes, codes, code.packed);
  }

 private:
  at::Tensor old(const Blocks& blocks, const BlockwiseMoment& moment, bool is_signed) const {
    const auto& code = kernels::moment_code(u_.format, is_signed);
    const auto numbers = table(code.values).index({blocks.codes_here(moment.codes, code.packed)});
    return blocks.padded(numbers).mul_(blocks.scales(moment.scales));
  }

  /// Number of thresholds that are at most x, by bisection: their number is a power of two minus one.
  static at::Tensor numbers_of(const at::Tensor& x, const at::Tensor& thresholds) {
    auto numbers = at::zeros(x.sizes(), x.options().dtype(at::kInt));
    for (auto half = (thresholds.size(0) + 1) / 2; half > 0; half /= 2)
      numbers.add_(x.ge(thresholds.index({numbers.add(half - 1)})).to(at::kInt), half);
    return numbers;
  }

  at::Tensor table(const std::vector<float>& values) const {
    auto* data = const_cast<float*>(values.data());  // NOLINT: nothing writes there
    const auto host = ops_.tensor_at(data, {std::ssize(values)}, at::kFloat);
    return u_.param.is_cpu() ? host : ops_.to_device(host);
  }

  const Ops& ops_;
  const BlockwiseUpdate& u_;
};

kernels::BlockwiseArgs blockwise_arguments(const BlockwiseUpdate& u) {
  const auto moment = [&](const BlockwiseMoment& m, bool is_signed) -> kernels::Moment {
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
  a.grad_scale = static_cast<float>(1 / u.grad_divisor);
  set_numbers(a, u);
  return a;
}

using MomentTables = std::map<std::pair<MomentFormat, bool>, std::pair<at::Tensor, at::Tensor>>;

/// \param tables  values and thresholds on the device, made at their first use
fused::Moment fused_moment(const Ops& ops, MomentTables& tables, const BlockwiseMoment& moment, MomentFormat format,
                           bool is_signed) {
  if (!moment.codes.defined()) return {};
  const auto& code = kernels::moment_code(format, is_signed);
  auto& [values, thresholds] = tables[{format, is_signed}];
  if (!values.defined()) {
    const auto here = [&](const std::vector<float>& table) {
      auto* data = const_cast<float*>(table.data());  // NOLINT: nothing writes there
      return ops.to_device(at::from_blob(data, {std::ssize(table)}, at::kFloat));
    };
    values = here(code.values);
    thresholds = here(code.thresholds);
  }
  return {static_cast<std::uint8_t*>(address_in(moment.codes)),
          floats_in(moment.scales),
          floats_of(values),
          floats_of(thresholds),
          static_cast<int>(code.values.size()),
          code.divides,
          code.least_scale};
}

}  // namespace

double BlockwiseUpdate::step_size() const { return lr / (1 - std::pow(beta1, static_cast<double>(step))); }

double BlockwiseUpdate::correction() const { return std::sqrt(1 - std::pow(beta2, static_cast<double>(step))); }

at::Tensor moment_numbers(MomentFormat format, bool is_signed) {
  const auto& numbers = kernels::moment_code(format, is_signed).values;
  return at::from_blob(const_cast<float*>(numbers.data()), {std::ssize(numbers)}, at::kFloat);
}

void Ops::blockwise(const BlockwiseUpdate& u) const {
  const auto counted = work_.pass(
      bytes_of({&u.param, &u.param, &u.grad, &u.first.codes, &u.first.codes, &u.second.codes, &u.second.codes}),
      is_on_host(u.param));
  if (cpu_ != nullptr) {
    constexpr std::int64_t kBlocksOfAThread = 128;
    const auto args = blockwise_arguments(u);
    launch(args.blocks, kBlocksOfAThread, [&](auto b, auto e) { cpu_->blockwise(args, b, e); });
    return;
  }
  if (is_offloaded(u.param)) {
    if (!work_.counts()) host_ops().blockwise(u);
    return;
  }
  if (fused_ != nullptr && !is_on_host(u.param)) {
    if (u.param.numel() == 0) return;
    fused::Blockwise pass{};
    pass.param = floats_in(u.param);
    pass.grad = floats_of(u.grad);
    pass.first = fused_moment(*this, moment_tables_, u.first, u.format, true);
    pass.second = fused_moment(*this, moment_tables_, u.second, u.format, false);
    pass.edges = static_cast<const double*>(address_of(u.edges));
    pass.elements = u.param.numel();
    pass.blocks = u.first.scales.numel();
    pass.offset = u.first_element % kernels::moment_block(u.format);
    pass.packed = are_packed(pass.offset, {pass.param, pass.grad});
    pass.grad_divisor = static_cast<float>(u.grad_divisor);
    set_numbers(pass, u);
    fused_->blockwise(pass);
    return;
  }
  const Blockwise all(*this, u);
  const auto num_blocks = u.first.scales.numel(), at_once = kElementsAtOnce / kernels::moment_block(u.format);
  for (std::int64_t begin = 0; begin < num_blocks; begin += at_once) {
    const auto end = std::min(num_blocks, begin + at_once);
    const Blocks blocks(u, begin, end);
    const auto moments = all.new_moments(blocks);
    auto first = sizes_of(moments.first).amax(1), second = moments.second.amax(1);
    for (const auto block : {std::int64_t{0}, num_blocks - 1}) {
      if (!u.edges.defined() || block < begin || block >= end) continue;
      const auto edge = u.edges.select(0, block == 0 ? 0 : 1);
      first.select(0, block - begin).copy_(edge.select(0, 0));
      second.select(0, block - begin).copy_(edge.select(0, 1));
    }
    all.step(blocks, moments);
    all.store(blocks, moments.first, first, u.first, true);
    if (!u.lion) all.store(blocks, moments.second, second, u.second, false);
  }
}

void Ops::blockwise_edges(const BlockwiseUpdate& u, const at::Tensor& largest) const {
  if (cpu_ != nullptr) {
    const auto args = blockwise_arguments(u);
    auto* out = largest.data_ptr<double>();
    launch(args.blocks > 0 ? 1 : 0, 1, [&](auto b, auto e) {
      if (b == e) return;
      cpu_->blockwise_largest(args, 0, out);
      cpu_->blockwise_largest(args, args.blocks - 1, out + 2);
    });
    return;
  }
  if (is_offloaded(u.param)) {
    if (!work_.counts()) host_ops().blockwise_edges(u, largest);
    return;
  }
  const auto num_blocks = u.first.scales.numel();
  if (num_blocks == 0) return;
  const Blockwise all(*this, u);
  for (const auto edge : {0, 1}) {
    const auto block = edge == 0 ? 0 : num_blocks - 1;
    const auto moments = all.new_moments(Blocks(u, block, block + 1));
    largest.select(0, edge).select(0, 0).copy_(sizes_of(moments.first).amax());
    if (!u.lion) largest.select(0, edge).select(0, 1).copy_(moments.second.amax());
  }
}

}  // namespace fsdp
