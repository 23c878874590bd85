// Optimizer updates by ATen's operators on any device: the reference in tests, and the fallback without kernels.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "lib/compute/ops/ops.hpp"

namespace fsdp {

void Ops::adamw(const AdamWUpdate& u) const {
  const auto options = u.params.front().options();
  const std::vector<at::Tensor> steps(u.params.size(), at::full({}, static_cast<double>(u.step), options));
  std::optional<at::Tensor> divisor;
  if (u.grad_divisor != 1.0) divisor = at::full({}, u.grad_divisor, options);
  at::_fused_adamw_(u.params, u.grads, u.exp_avg, u.exp_avg_sq, {}, steps, u.lr, u.beta1, u.beta2, u.weight_decay,
                    u.eps, /*amsgrad=*/false, /*maximize=*/false, divisor, std::nullopt);
}

void Ops::update(const ElementwiseUpdate& u) const {
  for (std::size_t i = 0; i < u.params.size(); ++i) {
    UpdatedTensors one{.param = u.params[i], .grad = u.grads[i].div(u.grad_divisor), .states = {}};
    for (const auto& state : u.states) one.states.push_back(state[i]);
    u.formula(one);
  }
}

// Adafactor. No operation waits for the device.

namespace {

at::Tensor scaled(const AdafactorUpdate& u) { return u.grad.div(u.grad_divisor); }

/// to = (1 - weight) to + weight * values
void average(const at::Tensor& to, const at::Tensor& values, double weight) {
  to.copy_(to.to(at::kDouble).lerp(values.to(at::kDouble), weight));
}

/// The update before clipping, learning rate and momentum.
at::Tensor direction(const AdafactorUpdate& u) {
  const auto grad = scaled(u);
  const double least = u.eps1 * u.eps1;
  if (u.variance.defined()) return grad.div((u.transformers ? u.variance : u.variance.clamp_min(least)).sqrt());
  const auto mean = u.sums.select(0, 1).div(static_cast<double>(u.rows));
  if (u.transformers) {
    const auto rows = u.row_var.to(at::kDouble).div(mean).rsqrt().to(at::kFloat);
    return grad.mul(rows.unsqueeze(1)).mul(u.col_var.rsqrt());
  }
  const auto rows = u.row_var.to(at::kDouble).div(mean.clamp_min(u.eps1)).to(at::kFloat);
  return grad.mul(rows.unsqueeze(1).mul(u.col_var).clamp_min_(least).rsqrt_());
}

/// Root mean square of a parameter whose sum of squares is `sum`.
at::Tensor root_mean(const AdafactorUpdate& u, const at::Tensor& sum) {
  return sum.div(static_cast<double>(u.elements)).sqrt();
}

}  // namespace

void Ops::adafactor_statistics(const AdafactorUpdate& u) const {
  const auto squares = scaled(u).to(at::kDouble).square_();
  u.sums.select(0, 0).copy_(u.param.to(at::kDouble).square_().sum());
  if (u.variance.defined()) {
    average(u.variance, squares.add(u.square_eps()), u.new_weight);
    return;
  }
  average(u.row_var, squares.mean(1).add_(u.square_eps()), u.new_weight);
  u.sums.select(0, 1).copy_(u.row_var.sum(at::kDouble));
  u.sums.slice(0, 2).copy_(squares.sum(0));
}

void Ops::adafactor_update_size(const AdafactorUpdate& u) const {
  if (!u.variance.defined())
    average(u.col_var, u.sums.slice(0, 2).div(static_cast<double>(u.rows)).add_(u.square_eps()), u.new_weight);
  u.update_sum.copy_(direction(u).to(at::kDouble).square_().sum());
}

void Ops::adafactor_apply(const AdafactorUpdate& u) const {
  auto rate = at::full({}, u.rate, u.sums.options());
  if (u.scale_parameter) rate.mul_(root_mean(u, u.sums.select(0, 0)).clamp_min_(u.eps2));
  auto update = direction(u).mul_(rate.div(root_mean(u, u.update_sum.select(0, 0)).clamp_min_(1.0)));
  if (u.exp_avg.defined()) {
    u.exp_avg.mul_(u.beta1).add_(update, 1 - u.beta1);
    update.copy_(u.exp_avg);
  }
  u.param.mul_(u.weight_decay_factor);
  if (u.relative_decay != 0) u.param.mul_(rate.mul(-u.relative_decay).add_(1.0));
  u.param.sub_(update);
}

// AdamW and Lion with quantized moments, some blocks at a time.

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

// Muon: the direction of an update, and its orthogonalization by Newton-Schulz iteration.

namespace {

/// Coefficients of torch.optim.Muon. They do not converge to 1, but give singular values of 0.7 to 1.2 after few steps.
constexpr double kA = 3.4445, kB = -4.775, kC = 2.0315;
constexpr int kSteps = 5;
constexpr double kLeastNorm = 1e-7;

/// Elements that are converted at a time.
constexpr std::int64_t kMuonElements = std::int64_t{1} << 20;

template <typename Body>
void for_pieces(const MuonUpdate& u, const Body& body) {
  const auto rows = u.param.size(0), columns = std::max<std::int64_t>(1, u.param.size(1));
  const auto step = std::max<std::int64_t>(1, kMuonElements / columns);
  for (std::int64_t first = 0; first < rows; first += step) {
    const auto n = std::min(step, rows - first);
    body([=](const at::Tensor& x) { return x.narrow(0, first, n); });
  }
}

}  // namespace

void Ops::muon_direction(const MuonUpdate& u, const at::Tensor& direction) const {
  for_pieces(u, [&](const auto& piece) {
    const auto grad = piece(u.grad).div(u.grad_divisor), momentum = piece(u.momentum_buffer);
    momentum.lerp_(grad, 1 - u.momentum);
    const auto next = grad.lerp(momentum, u.momentum);
    if (is_on_host(u.grad) == is_on_host(direction)) {
      piece(direction).copy_(next);
    } else {
      transfer(piece(direction), next.to(direction.scalar_type()));
    }
  });
}

at::Tensor Ops::orthogonalize(const at::Tensor& matrix) const {
  const bool tall = matrix.size(0) > matrix.size(1);
  const auto wide = tall ? matrix.t() : matrix;
  auto x_RC = wide.div(at::linalg_vector_norm(wide).clamp_min(kLeastNorm));  // makes singular values at most 1
  for (int i = 0; i < kSteps; ++i) {
    const auto gram_RR = linear(x_RC, x_RC);
    const auto factor_RR = blended_product(gram_RR, kB, gram_RR, gram_RR, kC);
    x_RC = blended_product(x_RC, kA, factor_RR, x_RC, 1.0);
  }
  return tall ? x_RC.t() : x_RC;
}

at::Tensor Ops::blended_product(const at::Tensor& x, double beta, const at::Tensor& a, const at::Tensor& b,
                                double alpha) const {
  return at::addmm(x, a, b, beta, alpha);
}

void Ops::muon_apply(const MuonUpdate& u, const at::Tensor& orthogonal) const {
  // With master weights on the host, the result is fetched first by to_host(), which fails if a rank is gone: a copy
  // between dtypes would wait forever.
  const auto here = is_on_host(u.param) ? to_host(orthogonal) : orthogonal;
  for_pieces(u, [&](const auto& piece) {
    piece(u.param).mul_(1 - u.lr * u.weight_decay).add_(piece(here).to(u.param.options()), -u.rate);
  });
}

// Histograms of float32 bits, for order statistics over several ranks.

void Ops::count_bits(const GradPart& part, BitRange range, std::span<double> counts) const {
  if (part.elements == 0) return;
  if (on_host() || is_on_host(part.grad)) return host_ops().count_bits(part, range, counts);
  // 64 bits, so that a shift by 32 gives 0.
  auto bits = part.grad.view({-1}).narrow(0, 0, part.elements).view(at::kInt).to(at::kLong);
  bits = bits.masked_select(at::bitwise_right_shift(bits, range.shift + range.bits).eq(std::int64_t{range.prefix}));
  const auto mask = (std::int64_t{1} << range.bits) - 1;
  const auto digits = at::bitwise_right_shift(bits, range.shift).bitwise_and(mask);
  const auto found = read(at::bincount(digits, {}, mask + 1).to(at::kDouble));
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += found[i];
}

}  // namespace fsdp
