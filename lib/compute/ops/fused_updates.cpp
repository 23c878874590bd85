// Passes over many tensors at once: sums of squares, updates of optimizers, and casts of master weights.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "lib/compute/ops/blockwise_numbers.hpp"
#include "lib/compute/ops/fused_args.hpp"
#include "lib/compute/ops/fused_ops.hpp"

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
    pass.type = fused_type(rows.front().*typed);
    for (const auto& row : std::span(rows).subspan(first, count))
      put(pass, add_tensor(pass, (row.*typed).numel()), row);
    launch(pass);
  }
}

}  // namespace

double FusedOps::sum_squares(std::span<const GradPart> parts) const {
  std::vector<GradPart> on_device, on_host;
  for (const auto& part : parts) {
    if (part.elements > 0) (is_on_host(part.grad) ? on_host : on_device).push_back(part);
  }
  if (kernels_ == nullptr || on_device.empty()) return AtenOps::sum_squares(parts);
  return (on_host.empty() ? 0.0 : AtenOps::sum_squares(on_host)) + read(device_sum_squares(on_device))[0];
}

at::Tensor FusedOps::device_sum_squares(std::span<const GradPart> parts) const {
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
      pass.type[n] = fused_type(part.grad);
    }
    kernels_->sum_squares(pass);
    to += pass.first_block[count];
  }
  auto sum = at::empty({1}, options);
  kernels_->total_sum({static_cast<const double*>(address_of(partial)), blocks, static_cast<double*>(address_in(sum))});
  return sum;
}

at::Tensor FusedOps::decide(const StepToDecide& step) const {
  const auto named = step.sums.numel() - 2;  // behind nats and weight
  auto decision = at::empty({fused::kDecisionSize + named}, step.squares.options());
  kernels_->decide_step({static_cast<const double*>(address_of(step.squares)),
                         static_cast<const double*>(address_of(step.sums)),
                         static_cast<const double*>(address_of(step.before)), static_cast<double>(step.replicas),
                         step.loss_scale, step.clip_norm, static_cast<double*>(address_in(decision))});
  if (named > 0) decision.narrow(0, fused::kDecisionSize, named).copy_(step.sums.narrow(0, 2, named));
  return decision;
}

std::function<StepOutcome()> FusedOps::outcome_of(const at::Tensor& decision) const {
  return [read = start_read(decision)] {
    const auto values = read();
    return StepOutcome{.norm = values[fused::kNorm],
                       .nats = values[fused::kNats],
                       .skipped = values[fused::kSkipped] != 0.0,
                       .loss_is_finite = std::isfinite(values[fused::kNats]),
                       .named = {values.begin() + fused::kDecisionSize, values.end()}};
  };
}

void FusedOps::cast_shards(std::span<const CastShard> rows) const {
  const auto [together, others] = by_one_pass(rows, &CastShard::to, [&](const auto& pair) {
    return takes({&pair.to}) && takes({&pair.from}) && pair.from.scalar_type() == at::kFloat;
  });
  AtenOps::cast_shards(others);
  launch_together<fused::CastShards>(
      together, &CastShard::to,
      [](fused::CastShards& pass, std::size_t n, const auto& pair) {
        pass.to[n] = address_in(pair.to);
        pass.from[n] = floats_of(pair.from);
      },
      [&](const auto& pass) { kernels_->cast_shards(pass); });
}

void FusedOps::upcast_sums(std::span<const UpcastSum> rows) const {
  const auto [together, others] = by_one_pass(rows, &UpcastSum::from, [&](const auto& row) {
    return takes({&row.to}) && takes({&row.from}) && row.to.scalar_type() == at::kFloat;
  });
  AtenOps::upcast_sums(others);
  launch_together<fused::UpcastSums>(
      together, &UpcastSum::from,
      [](fused::UpcastSums& pass, std::size_t n, const auto& row) {
        pass.to[n] = floats_in(row.to);
        pass.from[n] = address_of(row.from);
        pass.add[n] = row.add;
      },
      [&](const auto& pass) { kernels_->upcast_sums(pass); });
}

void FusedOps::adamw(const AdamWUpdate& u) const {
  if (kernels_ == nullptr || is_on_host(u.params.front())) {
    TORCH_CHECK(!u.decision.defined(), "a step that the device decides has parameters elsewhere");
    return AtenOps::adamw(u);
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
      pass.grad_type[n] = fused_type(u.grads[i]);
      if (u.cast_params.empty() || !u.cast_params[i].defined()) continue;
      pass.cast_params[n] = address_in(u.cast_params[i]);
      pass.cast_type = fused_type(u.cast_params[i]);
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
    kernels_->adamw(pass);
  }
}

namespace {

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
  for (std::size_t s = 0; s < u.states.size(); ++s) pass.state_types[s] = fused_type(u.states[s].front());
  pass.decision = static_cast<const double*>(address_of(u.decision));
  pass.grad_divisor = static_cast<float>(u.grad_divisor);
  pass.lr = static_cast<float>(u.lr);
  pass.weight_decay = static_cast<float>(u.weight_decay);
  pass.decay_factor = static_cast<float>(1 - u.lr * u.weight_decay);
  std::copy(u.numbers.begin(), u.numbers.end(), pass.numbers);
  return pass;
}

}  // namespace

void FusedOps::update(const ElementwiseUpdate& u) const {
  const auto named = std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& k) { return k.kernel == u.kernel; });
  if (kernels_ == nullptr || is_on_host(u.params.front()) || named == kKinds.end()) {
    TORCH_CHECK(!u.decision.defined(), "a step that the device decides has parameters elsewhere");
    return AtenOps::update(u);
  }
  for (std::size_t first = 0; first < u.params.size(); first += fused::kTensorsOfLaunch) {
    const auto count = std::min<std::size_t>(fused::kTensorsOfLaunch, u.params.size() - first);
    auto pass = elementwise_pass(u, named->kind);
    for (std::size_t i = first; i < first + count; ++i) {
      if (u.params[i].numel() == 0) continue;
      const auto n = add_tensor(pass, u.params[i].numel());
      pass.param[n] = address_in(u.params[i]);
      pass.param_type[n] = fused_type(u.params[i]);
      for (std::size_t s = 0; s < u.states.size(); ++s) pass.states[s][n] = address_in(u.states[s][i]);
      pass.grad[n] = address_of(u.grads[i]);
      pass.grad_type[n] = fused_type(u.grads[i]);
      if (u.cast_params.empty() || !u.cast_params[i].defined()) continue;
      pass.cast_params[n] = address_in(u.cast_params[i]);
      pass.cast_type = fused_type(u.cast_params[i]);
    }
    if (pass.tensors > 0) kernels_->elementwise(pass);
  }
}

fused::Moment FusedOps::moment_of(const BlockwiseMoment& moment, MomentFormat format, bool is_signed) const {
  if (!moment.codes.defined()) return {};
  const auto& code = kernels::moment_code(format, is_signed);
  auto& [values, thresholds] = moment_tables_[{format, is_signed}];
  if (!values.defined()) {
    const auto here = [&](const std::vector<float>& table) {
      auto* data = const_cast<float*>(table.data());  // NOLINT: nothing writes there
      return to_device(at::from_blob(data, {static_cast<std::int64_t>(table.size())}, at::kFloat));
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

void FusedOps::blockwise(const BlockwiseUpdate& u) const {
  if (kernels_ == nullptr || is_on_host(u.param)) return AtenOps::blockwise(u);
  if (u.param.numel() == 0) return;
  fused::Blockwise pass{};
  pass.param = floats_in(u.param);
  pass.grad = floats_of(u.grad);
  pass.first = moment_of(u.first, u.format, true);
  pass.second = moment_of(u.second, u.format, false);
  pass.edges = static_cast<const double*>(address_of(u.edges));
  pass.elements = u.param.numel();
  pass.blocks = u.first.scales.numel();
  pass.offset = u.first_element % kernels::moment_block(u.format);
  pass.packed = are_packed(pass.offset, {pass.param, pass.grad});
  pass.grad_divisor = static_cast<float>(u.grad_divisor);
  set_numbers(pass, u);
  kernels_->blockwise(pass);
}

}  // namespace fsdp
