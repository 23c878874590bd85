// Updates whose moments take few bits by ATen's operators, some blocks at a time.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "lib/compute/ops/ops.hpp"

namespace fsdp {
namespace {

constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 22;

/// Blocks [begin, end) of an update.
class Blocks {
 public:
  Blocks(const BlockwiseUpdate& update, std::int64_t begin, std::int64_t end)
      : size_(kernels::moment_block(update.format)),
        begin_(begin),
        end_(end),
        offset_(update.first_element % size_),
        elements_(update.param.numel()) {}

  /// [blocks, elements of one], with zeros around what is this rank's.
  at::Tensor of(const at::Tensor& flat) const { return padded(here(flat)); }
  at::Tensor here(const at::Tensor& flat) const { return flat.narrow(0, first(), last() - first()); }
  /// Codes as int32, a number for each element.
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
  at::Tensor first, second;  ///< of Lion the second is what it steps by
};

/// Their absolute values; abs() has no kernel for tensors without values.
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

  /// How many thresholds are at most x: by halves, for there are one less than a power of two of them.
  static at::Tensor numbers_of(const at::Tensor& x, const at::Tensor& thresholds) {
    auto numbers = at::zeros(x.sizes(), x.options().dtype(at::kInt));
    for (auto half = (thresholds.size(0) + 1) / 2; half > 0; half /= 2)
      numbers.add_(x.ge(thresholds.index({numbers.add(half - 1)})).to(at::kInt), half);
    return numbers;
  }

  at::Tensor table(const std::vector<float>& values) const {
    auto* data = const_cast<float*>(values.data());  // NOLINT: nothing writes there
    const auto host = ops_.tensor_at(data, {static_cast<std::int64_t>(values.size())}, at::kFloat);
    return u_.param.is_cpu() ? host : ops_.to_device(host);
  }

  const Ops& ops_;
  const BlockwiseUpdate& u_;
};

}  // namespace

double BlockwiseUpdate::step_size() const { return lr / (1 - std::pow(beta1, static_cast<double>(step))); }

double BlockwiseUpdate::correction() const { return std::sqrt(1 - std::pow(beta2, static_cast<double>(step))); }

at::Tensor moment_numbers(MomentFormat format, bool is_signed) {
  const auto& numbers = kernels::moment_code(format, is_signed).values;
  return at::from_blob(const_cast<float*>(numbers.data()), {static_cast<std::int64_t>(numbers.size())}, at::kFloat);
}

void Ops::blockwise(const BlockwiseUpdate& u) const {
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
