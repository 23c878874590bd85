// Passes over many tensors at once: sums of gradients, a step's decision, casts, and updates of optimizers.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/base/types/index.hpp"
#include "lib/compute/ops/fused_args.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/ops/row_loops.hpp"

namespace fsdp {

using namespace detail;

namespace {

template <typename Row>
struct RowsOfPass {
  std::vector<Row> together, others;
};

/// Splits rows into those that one kernel launch supports, with the dtype of `typed` of the first, and others, which
/// are copied one by one. Empty rows are dropped.
template <typename Row, typename Takes>
RowsOfPass<Row> by_one_pass(std::span<const Row> rows, at::Tensor Row::*typed, const Takes& takes) {
  RowsOfPass<Row> found;
  for (const auto& row : rows) {
    if ((row.*typed).numel() == 0) continue;
    const bool alike =
        found.together.empty() || (row.*typed).scalar_type() == (found.together.front().*typed).scalar_type();
    (takes(row) && alike ? found.together : found.others).push_back(row);
  }
  return found;
}

/// Launches passes of at most kTensorsOfLaunch rows. \param put  stores a row as the n-th tensor of a pass
template <typename Pass, typename Row, typename Put, typename Launch>
void launch_together(const std::vector<Row>& rows, at::Tensor Row::*typed, const Put& put, const Launch& launch) {
  for (std::size_t first = 0; first < rows.size(); first += fused::kTensorsOfLaunch) {
    const auto count = std::min<std::size_t>(fused::kTensorsOfLaunch, rows.size() - first);
    Pass pass{};
    pass.type = kernel_type(rows.front().*typed);
    for (const auto& row : std::span(rows).subspan(first, count))
      put(pass, add_tensor(pass, (row.*typed).numel()), row);
    launch(pass);
  }
}

/// \param is_sent  whether a row is rounded on the host while earlier ones are sent
template <typename IsSent>
void count_casts(const WorkCounter& work, std::span<const CastShard> rows, const IsSent& is_sent) {
  double here = 0, sent = 0, rounded = 0;
  for (const auto& pair : rows) {
    (is_sent(pair) ? rounded : here) += bytes_of({&pair.to, &pair.from});
    if (is_sent(pair)) sent += bytes_of({&pair.to});
  }
  if (sent > 0) {
    const int copy = work.log().start({.kind = TransferWork::Kind::to_host, .bytes = sent});
    const auto counted = work.pass(rounded, true);
    work.log().wait(copy);
  }
  const auto counted = work.pass(here);
}

const kernels::UpdateKernel& kernel_named(const kernels::Table& cpu, std::string_view name) {
  for (const auto& kernel : cpu.updates) {
    if (kernel.name == name) return kernel;
  }
  TORCH_CHECK(false, "there is no kernel ", name);
}

struct NamedKind {
  std::string_view kernel;  ///< ElementwiseUpdate::kernel
  fused::ElementwiseKind kind;
};
constexpr std::array kKinds{NamedKind{"sgd", fused::ElementwiseKind::sgd},
                            NamedKind{"lion", fused::ElementwiseKind::lion},
                            NamedKind{"anyprecision", fused::ElementwiseKind::anyprecision}};

/// Fills the arguments that all tensors of an update share.
fused::Elementwise elementwise_pass(const ElementwiseUpdate& u, fused::ElementwiseKind kind) {
  fused::Elementwise pass{};
  pass.kind = kind;
  pass.num_states = static_cast<int>(u.states.size());
  for (std::size_t s = 0; s < u.states.size(); ++s) pass.state_types[s] = kernel_type(u.states[s].front());
  pass.decision = static_cast<const double*>(address_of(u.decision));
  pass.grad_divisor = static_cast<float>(u.grad_divisor);
  pass.lr = static_cast<float>(u.lr);
  pass.weight_decay = static_cast<float>(u.weight_decay);
  pass.decay_factor = static_cast<float>(1 - u.lr * u.weight_decay);
  std::copy(u.numbers.begin(), u.numbers.end(), pass.numbers);
  return pass;
}

}  // namespace

// --- gradients

double Ops::sum_squares(std::span<const GradPart> parts) const {
  if (cpu_ != nullptr) {
    double bytes = 0;
    for (const auto& part : parts) bytes += bytes_of({&part.grad});
    const auto counted = work_.pass(bytes);
    double total = 0;
    for (const auto& [grad, n] : parts) {
      // Pieces of fixed size, so that the sum does not depend on the number of threads.
      constexpr std::int64_t kPiece = 1 << 16;
      std::vector<double> sums(static_cast<std::size_t>((n + kPiece - 1) / kPiece));
      const auto* data = grad.const_data_ptr<float>();
      launch(std::ssize(sums), 4, [&, end_of_data = n](std::int64_t b, std::int64_t e) {
        for (std::int64_t i = b; i < e; ++i) {
          element(sums, i) = cpu_->sum_squares(data, i * kPiece, std::min(end_of_data, (i + 1) * kPiece));
        }
      });
      // Each part is summed on its own, so that calls with one part each add up to the same bits.
      total += std::accumulate(sums.begin(), sums.end(), 0.0);
    }
    return total;
  }
  std::vector<GradPart> here, offloaded;
  double bytes = 0, offloaded_bytes = 0;
  for (const auto& part : parts) {
    const bool apart = is_on_host(part.grad);
    (apart ? offloaded_bytes : bytes) += bytes_of({&part.grad});
    if (part.elements > 0) (apart ? offloaded : here).push_back(part);
  }
  double total = 0;
  if (!offloaded.empty()) {
    const auto counted = work_.pass(offloaded_bytes, true);
    if (!work_.counts()) total = host_ops().sum_squares(offloaded);
  }
  if (here.empty()) return total;
  const auto counted = work_.pass(bytes);
  if (fused_ != nullptr) return total + read(device_sum_squares(here))[0];
  at::Tensor sum;  // fetched once, since each item() would synchronize
  for (const auto& part : here) {
    const auto more = part.grad.to(at::kDouble).square_().sum();
    sum = sum.defined() ? sum + more : more;
  }
  return total + read(sum)[0];
}

void Ops::sum_sources(const at::Tensor& out, std::int64_t n, std::span<const void* const> sources, at::ScalarType dtype,
                      bool accumulate) const {
  if (cpu_ == nullptr) {
    if (!work_.counts()) host_ops().sum_sources(out, n, sources, dtype, accumulate);
    return;
  }
  const auto elements = static_cast<double>(n);
  const auto read_bytes = elements * static_cast<double>(c10::elementSize(dtype) * sources.size());
  const auto counted = work_.pass(read_bytes + elements * (accumulate ? 8 : 4));
  auto* to = out.data_ptr<float>();
  launch(n, 65536, [&](std::int64_t b, std::int64_t e) {
    cpu_->sum_sources(kernel_type(dtype), to, sources.data(), static_cast<int>(sources.size()), accumulate, b, e);
  });
}

// Histograms of float32 bits, for order statistics over several ranks.
void Ops::count_bits(const GradPart& part, BitRange range, std::span<double> counts) const {
  if (cpu_ != nullptr) {
    constexpr std::int64_t kBitsGrain = std::int64_t{1} << 18;
    std::mutex mutex;
    launch(part.elements, kBitsGrain, [&](std::int64_t begin, std::int64_t end) {
      const auto* values = static_cast<const std::uint32_t*>(part.grad.const_data_ptr());
      const std::uint32_t mask = (std::uint32_t{1} << range.bits) - 1;
      std::vector<std::int64_t> chunk_counts(counts.size(), 0);
      for (auto i = begin; i < end; ++i) {
        const std::uint64_t bits = values[i];
        if (bits >> (range.shift + range.bits) == range.prefix) ++chunk_counts[bits >> range.shift & mask];
      }
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < chunk_counts.size(); ++i) counts[i] += static_cast<double>(chunk_counts[i]);
    });
    return;
  }
  if (part.elements == 0 || work_.counts()) return;
  if (is_on_host(part.grad)) return host_ops().count_bits(part, range, counts);
  // 64 bits, so that a shift by 32 gives 0.
  auto bits = part.grad.view({-1}).narrow(0, 0, part.elements).view(at::kInt).to(at::kLong);
  bits = bits.masked_select(at::bitwise_right_shift(bits, range.shift + range.bits).eq(std::int64_t{range.prefix}));
  const auto mask = (std::int64_t{1} << range.bits) - 1;
  const auto digits = at::bitwise_right_shift(bits, range.shift).bitwise_and(mask);
  const auto found = read(at::bincount(digits, {}, mask + 1).to(at::kDouble));
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += found[i];
}

// --- the device's decision of a step

at::Tensor Ops::device_sum_squares(std::span<const GradPart> parts) const {
  TORCH_CHECK(decides(), "the host decides steps");
  const auto options = at::TensorOptions(at::kDouble).device(device());
  std::int64_t blocks = 0;
  for (const auto& part : parts) blocks += fused::update_blocks(part.elements);
  if (blocks == 0) return at::zeros({1}, options);
  const auto partial = at::empty({blocks}, options);
  auto* to = static_cast<double*>(address_in(partial));
  for (std::size_t first = 0; first < parts.size(); first += fused::kTensorsOfLaunch) {
    const auto count = std::min<std::size_t>(fused::kTensorsOfLaunch, parts.size() - first);
    fused::SumSquares pass{};
    pass.partial = to;
    for (const auto& part : parts.subspan(first, count)) {
      const auto n = add_tensor(pass, part.elements);
      pass.data[n] = address_of(part.grad);
      pass.type[n] = kernel_type(part.grad);
    }
    fused_->sum_squares(pass);
    to += pass.first_block[count];
  }
  auto sum = at::empty({1}, options);
  fused_->total_sum({static_cast<const double*>(address_of(partial)), blocks, static_cast<double*>(address_in(sum))});
  return sum;
}

at::Tensor Ops::decide(const StepToDecide& step) const {
  TORCH_CHECK(decides(), "the host decides steps");
  const auto named = step.sums.numel() - 2;  // after nats and weight
  auto decision = at::empty({fused::kDecisionSize + named}, step.squares.options());
  fused_->decide_step({static_cast<const double*>(address_of(step.squares)),
                       static_cast<const double*>(address_of(step.sums)),
                       static_cast<const double*>(address_of(step.before)), static_cast<double>(step.replicas),
                       step.loss_scale, step.clip_norm, static_cast<double*>(address_in(decision))});
  if (named > 0) decision.narrow(0, fused::kDecisionSize, named).copy_(step.sums.narrow(0, 2, named));
  return decision;
}

std::function<StepOutcome()> Ops::outcome_of(const at::Tensor& decision) const {
  TORCH_CHECK(decides(), "the host decides steps");
  return [read = start_read(decision)] {
    const auto values = read();
    return StepOutcome{.norm = values[fused::kNorm],
                       .nats = values[fused::kNats],
                       .skipped = values[fused::kSkipped] != 0.0,
                       .loss_is_finite = std::isfinite(values[fused::kNats]),
                       .named = {values.begin() + fused::kDecisionSize, values.end()}};
  };
}

// --- casts

void Ops::send_rounded(const at::Tensor& to, const at::Tensor& from) const { to.copy_(from); }

void Ops::cast_shards(std::span<const CastShard> rows) const {
  const auto is_sent = [&](const CastShard& pair) { return is_on_host(pair.from) && !is_on_host(pair.to); };
  if (work_.counts()) count_casts(work_, rows, is_sent);
  const auto [together, others] = by_one_pass(rows, &CastShard::to, [&](const auto& pair) {
    return fused_for({&pair.to}) != nullptr && fused_for({&pair.from}) != nullptr &&
           pair.from.scalar_type() == at::kFloat;
  });
  for (const auto& pair : others) {
    const bool plain = pair.to.is_contiguous() && pair.from.is_contiguous();
    is_sent(pair) && plain ? send_rounded(pair.to, pair.from) : static_cast<void>(pair.to.copy_(pair.from));
  }
  launch_together<fused::CastShards>(
      together, &CastShard::to,
      [](fused::CastShards& pass, std::size_t n, const auto& pair) {
        pass.to[n] = address_in(pair.to);
        pass.from[n] = floats_of(pair.from);
      },
      [&](const auto& pass) { fused_->cast_shards(pass); });
}

void Ops::upcast_sums(std::span<const UpcastSum> rows) const {
  const auto [together, others] = by_one_pass(rows, &UpcastSum::from, [&](const auto& row) {
    return fused_for({&row.to}) != nullptr && fused_for({&row.from}) != nullptr && row.to.scalar_type() == at::kFloat;
  });
  for (const auto& [to, from, add] : others) add ? to.add_(from) : to.copy_(from);
  launch_together<fused::UpcastSums>(
      together, &UpcastSum::from,
      [](fused::UpcastSums& pass, std::size_t n, const auto& row) {
        pass.to[n] = floats_in(row.to);
        pass.from[n] = address_of(row.from);
        pass.add[n] = row.add;
      },
      [&](const auto& pass) { fused_->upcast_sums(pass); });
}

// --- AdamW

void Ops::plain_adamw(const AdamWUpdate& u) const {
  const auto options = u.params.front().options();
  const std::vector<at::Tensor> steps(u.params.size(), at::full({}, static_cast<double>(u.step), options));
  std::optional<at::Tensor> divisor;
  if (u.grad_divisor != 1.0) divisor = at::full({}, u.grad_divisor, options);
  at::_fused_adamw_(u.params, u.grads, u.exp_avg, u.exp_avg_sq, {}, steps, u.lr, u.beta1, u.beta2, u.weight_decay,
                    u.eps, /*amsgrad=*/false, /*maximize=*/false, divisor, std::nullopt);
}

void Ops::adamw(const AdamWUpdate& u) const {
  if (work_.counts()) {
    WorkItem work;
    work.bytes = bytes_of_update(u) + 2 * bytes_of(u.exp_avg) + 2 * bytes_of(u.exp_avg_sq);
    work.on_host = is_on_host(u.params.front());
    work_.add(work);
  }
  if (fused_ == nullptr || is_on_host(u.params.front())) {
    TORCH_CHECK(!u.decision.defined(), "a step that the device decides has parameters elsewhere");
    return plain_adamw(u);
  }
  for (std::size_t first = 0; first < u.params.size(); first += fused::kTensorsOfLaunch) {
    const auto count = std::min<std::size_t>(fused::kTensorsOfLaunch, u.params.size() - first);
    fused::AdamW pass{};
    for (std::size_t i = first; i < first + count; ++i) {
      const auto elements = u.params[i].numel();
      if (elements == 0) continue;
      const auto n = add_tensor(pass, elements);
      pass.param[n] = floats_in(u.params[i]);
      pass.exp_avg[n] = floats_in(u.exp_avg[i]);
      pass.exp_avg_sq[n] = floats_in(u.exp_avg_sq[i]);
      pass.grad[n] = address_of(u.grads[i]);
      pass.grad_type[n] = kernel_type(u.grads[i]);
      if (u.cast_params.empty() || !u.cast_params[i].defined()) continue;
      pass.cast_params[n] = address_in(u.cast_params[i]);
      pass.cast_type = kernel_type(u.cast_params[i]);
    }
    if (pass.tensors == 0) continue;
    const auto power = [&](double beta) { return std::pow(beta, static_cast<double>(u.step)); };
    pass.decay_factor = static_cast<float>(1 - u.lr * u.weight_decay);
    pass.grad_divisor = static_cast<float>(u.grad_divisor);
    pass.decision = static_cast<const double*>(address_of(u.decision));
    pass.beta1 = static_cast<float>(u.beta1);
    pass.beta2 = static_cast<float>(u.beta2);
    pass.rest1 = static_cast<float>(1 - u.beta1);
    pass.rest2 = static_cast<float>(1 - u.beta2);
    pass.step_size = static_cast<float>(u.lr / (1 - power(u.beta1)));
    pass.correction = static_cast<float>(std::sqrt(1 - power(u.beta2)));
    pass.eps = static_cast<float>(u.eps);
    fused_->adamw(pass);
  }
}

// --- updates of each element by nothing but the element

void Ops::update(const ElementwiseUpdate& u) const {
  double bytes = 0;
  if (work_.counts()) {
    bytes = bytes_of_update(u);
    for (const auto& state : u.states) bytes += 2 * bytes_of(state);
  }
  const auto counted = work_.pass(bytes, is_on_host(u.params.front()));
  if (cpu_ != nullptr) {
    constexpr std::int64_t kGrain = 32768;  // least number of elements per thread
    const auto& kernel = kernel_named(*cpu_, u.kernel);
    const auto array = [&](const at::Tensor& x) -> kernels::UpdatedArray {
      TORCH_CHECK(kernel.takes_bf16 || x.scalar_type() == at::kFloat, u.kernel, " was given ", x.scalar_type());
      return {x.data_ptr(), kernel_type(x)};
    };
    kernels::UpdateArgs args;
    args.lr = static_cast<float>(u.lr);
    args.weight_decay = static_cast<float>(u.weight_decay);
    args.decay_factor = static_cast<float>(1 - u.lr * u.weight_decay);
    args.grad_scale = static_cast<float>(1 / u.grad_divisor);
    for (std::size_t n = 0; n < u.numbers.size(); ++n) args.numbers.at(n) = u.numbers[n];
    for (std::size_t i = 0; i < u.params.size(); ++i) {
      args.param = array(u.params[i]);
      args.grad = u.grads[i].data_ptr<float>();
      for (std::size_t s = 0; s < u.states.size(); ++s) args.states.at(s) = array(u.states[s][i]);
      launch(u.params[i].numel(), kGrain, [&](auto b, auto e) { kernel.run(args, b, e); });
    }
    return;
  }
  const auto named = std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& k) { return k.kernel == u.kernel; });
  if (fused_ == nullptr || is_on_host(u.params.front()) || named == kKinds.end()) {
    TORCH_CHECK(!u.decision.defined(), "a step that the device decides has parameters elsewhere");
    if (is_offloaded(u.params.front())) {
      if (!work_.counts()) host_ops().update(u);
      return;
    }
    for (std::size_t i = 0; i < u.params.size(); ++i) {
      UpdatedTensors one{.param = u.params[i], .grad = u.grads[i].div(u.grad_divisor), .states = {}};
      for (const auto& state : u.states) one.states.push_back(state[i]);
      u.formula(one);
    }
    return;
  }
  for (std::size_t first = 0; first < u.params.size(); first += fused::kTensorsOfLaunch) {
    const auto count = std::min<std::size_t>(fused::kTensorsOfLaunch, u.params.size() - first);
    auto pass = elementwise_pass(u, named->kind);
    for (std::size_t i = first; i < first + count; ++i) {
      if (u.params[i].numel() == 0) continue;
      const auto n = add_tensor(pass, u.params[i].numel());
      pass.param[n] = address_in(u.params[i]);
      pass.param_type[n] = kernel_type(u.params[i]);
      for (std::size_t s = 0; s < u.states.size(); ++s) pass.states[s][n] = address_in(u.states[s][i]);
      pass.grad[n] = address_of(u.grads[i]);
      pass.grad_type[n] = kernel_type(u.grads[i]);
      if (u.cast_params.empty() || !u.cast_params[i].defined()) continue;
      pass.cast_params[n] = address_in(u.cast_params[i]);
      pass.cast_type = kernel_type(u.cast_params[i]);
    }
    if (pass.tensors > 0) fused_->elementwise(pass);
  }
}

}  // namespace fsdp
