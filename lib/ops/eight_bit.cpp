// AdamW with moments of 8 bits by ATen's operators, some blocks at a time.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "lib/kernels/eight_bit_code.hpp"
#include "lib/ops/ops.hpp"

namespace fsdp {
namespace {

constexpr auto kBlock = kEightBitBlock;
static_assert(kBlock == kernels::kEightBitBlock);
constexpr std::int64_t kBlocksAtOnce = 16384;

/// Blocks [begin, end) of an update.
class Blocks {
 public:
  Blocks(const AdamW8bitUpdate& update, std::int64_t begin, std::int64_t end)
      : begin_(begin), end_(end), offset_(update.first_element % kBlock), elements_(update.param.numel()) {}

  /// [blocks, 256], with zeros around what is this rank's.
  at::Tensor of(const at::Tensor& flat) const { return padded(here(flat)); }
  at::Tensor here(const at::Tensor& flat) const { return flat.narrow(0, first(), last() - first()); }
  at::Tensor padded(const at::Tensor& values) const {
    auto blocks = at::zeros({end_ - begin_, kBlock}, values.options());
    part(blocks.view({-1})).copy_(values);
    return blocks;
  }
  void put(const at::Tensor& flat, const at::Tensor& blocks) const { here(flat).copy_(part(blocks.view({-1}))); }
  at::Tensor scales(const at::Tensor& absmax) const { return absmax.narrow(0, begin_, end_ - begin_).unsqueeze(1); }

 private:
  std::int64_t first() const { return std::max<std::int64_t>(0, begin_ * kBlock - offset_); }
  std::int64_t last() const { return std::min(elements_, end_ * kBlock - offset_); }
  at::Tensor part(const at::Tensor& blocks) const {
    return blocks.narrow(0, first() - (begin_ * kBlock - offset_), last() - first());
  }

  std::int64_t begin_, end_, offset_, elements_;
};

struct Moments {
  at::Tensor momentum, variance;
};

class EightBitAdamW {
 public:
  EightBitAdamW(const Ops& ops, const AdamW8bitUpdate& update) : ops_(ops), u_(update) {}

  Moments new_moments(const Blocks& blocks) const {
    const auto grad = blocks.of(u_.grad).div_(u_.grad_divisor);
    const auto old = [&](const at::Tensor& codes, const at::Tensor& absmax, const kernels::EightBitCode& code) {
      const auto numbers = values(code).index({blocks.here(codes).to(at::kLong)});
      return blocks.padded(numbers).mul_(blocks.scales(absmax));
    };
    return {old(u_.state1, u_.absmax1, kernels::signed_code()).mul_(u_.beta1).add_(grad, 1 - u_.beta1),
            old(u_.state2, u_.absmax2, kernels::unsigned_code()).mul_(u_.beta2).addcmul_(grad, grad, 1 - u_.beta2)};
  }

  void store(const Blocks& blocks, const at::Tensor& moment, const at::Tensor& largest, const at::Tensor& codes,
             const at::Tensor& absmax, const kernels::EightBitCode& code) const {
    blocks.scales(absmax).copy_(largest.unsqueeze(1));
    const auto scale = largest.reciprocal().masked_fill_(largest == 0, 0).unsqueeze(1);
    const auto half = moment.mul(scale).clamp_(-1, 1).add_(1).mul_(0.5);
    const auto bins = half.to(at::kDouble).mul_(65535).add_(0.5).to(at::kFloat).to(at::kLong);  // an fma
    auto numbers = bins_of(code).index({bins});
    numbers.masked_fill_(largest.unsqueeze(1) == 0, 0);
    blocks.put(codes, numbers);
  }

 private:
  at::Tensor values(const kernels::EightBitCode& code) const {
    return table(code.values.data(), code.values.size(), at::kFloat);
  }
  at::Tensor bins_of(const kernels::EightBitCode& code) const {
    return table(code.codes.data(), code.codes.size(), at::kByte);
  }
  at::Tensor table(const void* data, std::size_t size, at::ScalarType dtype) const {
    const auto host = ops_.tensor_at(const_cast<void*>(data), {static_cast<std::int64_t>(size)}, dtype);
    return u_.param.is_cpu() ? host : ops_.to_device(host);
  }

  const Ops& ops_;
  const AdamW8bitUpdate& u_;
};

/// Their absolute values; abs() has no kernel for tensors without values.
at::Tensor sizes_of(const at::Tensor& moments) { return at::maximum(moments, moments.neg()); }

}  // namespace

at::Tensor eight_bit_numbers(bool is_signed) {
  const auto& numbers = (is_signed ? kernels::signed_code() : kernels::unsigned_code()).values;
  return at::from_blob(const_cast<float*>(numbers.data()), {static_cast<std::int64_t>(numbers.size())}, at::kFloat);
}

void Ops::adamw_8bit(const AdamW8bitUpdate& u) const {
  const EightBitAdamW adamw(*this, u);
  const auto t = static_cast<double>(u.step);
  const double step_size = u.lr / (1 - std::pow(u.beta1, t)), correction = std::sqrt(1 - std::pow(u.beta2, t));
  const auto num_blocks = u.absmax1.numel();
  for (std::int64_t begin = 0; begin < num_blocks; begin += kBlocksAtOnce) {
    const auto end = std::min(num_blocks, begin + kBlocksAtOnce);
    const Blocks blocks(u, begin, end);
    const auto [momentum, variance] = adamw.new_moments(blocks);
    auto largest1 = sizes_of(momentum).amax(1), largest2 = variance.amax(1);
    for (const auto block : {std::int64_t{0}, num_blocks - 1}) {
      if (!u.edges.defined() || block < begin || block >= end) continue;
      const auto edge = u.edges.select(0, block == 0 ? 0 : 1);
      largest1.select(0, block - begin).copy_(edge.select(0, 0));
      largest2.select(0, block - begin).copy_(edge.select(0, 1));
    }
    auto param = blocks.of(u.param).mul_(1 - u.lr * u.weight_decay);
    param.addcdiv_(momentum, variance.sqrt().div_(correction).add_(u.eps), -step_size);
    blocks.put(u.param, param);
    adamw.store(blocks, momentum, largest1, u.state1, u.absmax1, kernels::signed_code());
    adamw.store(blocks, variance, largest2, u.state2, u.absmax2, kernels::unsigned_code());
  }
}

void Ops::adamw_8bit_edges(const AdamW8bitUpdate& u, const at::Tensor& largest) const {
  if (u.absmax1.numel() == 0) return;
  const EightBitAdamW adamw(*this, u);
  for (const auto edge : {0, 1}) {
    const auto block = edge == 0 ? 0 : u.absmax1.numel() - 1;
    const auto [momentum, variance] = adamw.new_moments(Blocks(u, block, block + 1));
    largest.select(0, edge).select(0, 0).copy_(sizes_of(momentum).amax());
    largest.select(0, edge).select(0, 1).copy_(variance.amax());
  }
}

}  // namespace fsdp
