// Embeddings, rotary positions, and the loss.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "lib/base/types/index.hpp"
#include "lib/compute/ops/fused_args.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/ops/row_loops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {

using namespace detail;

// --- embedding

namespace {

/// Adds row t of `from_ND` to row row_of(t) of `to_RD`, in order of t, so that runs are reproducible. Several rows that
/// go to one 16-bit row are summed in float32 and rounded once; otherwise a frequent id would lose most of its
/// gradient. \param sum_D  float32 buffer for these sums
void add_rows(const kernels::Table& cpu, at::Tensor& to_RD, const at::Tensor& from_ND,
              const std::function<std::int64_t(std::int64_t)>& row_of, at::Tensor& sum_D) {
  const auto n = from_ND.size(0), dim = from_ND.size(1);
  const auto type = kernel_type(from_ND);
  const auto source = [&](std::int64_t row) {
    return static_cast<const std::byte*>(from_ND.const_data_ptr()) + row * dim * from_ND.element_size();
  };
  if (to_RD.scalar_type() == at::kFloat) {
    for (std::int64_t t = 0; t < n; ++t)
      cpu.upcast_add(type, to_RD.data_ptr<float>() + row_of(t) * dim, source(t), 0, dim);
    return;
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> order;  // target row, source row
  for (std::int64_t t = 0; t < n; ++t) order.emplace_back(row_of(t), t);
  std::sort(order.begin(), order.end());
  for (std::size_t first = 0, next = 0; first < order.size(); first = next) {
    const auto row = order[first].first;
    while (next < order.size() && order[next].first == row) ++next;
    auto target_D = to_RD.select(0, row);
    if (next == first + 1) {
      cpu.add_bias(type, target_D.data_ptr(), source(order[first].second), nullptr, dim, 0, 1);
      continue;
    }
    sum_D.copy_(target_D);
    for (auto i = first; i < next; ++i) cpu.upcast_add(type, sum_D.data_ptr<float>(), source(order[i].second), 0, dim);
    target_D.copy_(sum_D);
  }
}

/// Sums rows in float32: in 16 bits, gradients of a frequent id would soon be too small to change the sum.
void plain_add_rows(at::Tensor& to_VD, const at::Tensor& rows_N, const at::Tensor& from_ND) {
  const auto type = to_VD.element_size() == 2 ? at::kFloat : to_VD.scalar_type();
  auto sums_VD = to_VD.to(type);
  sums_VD.index_add_(0, rows_N, from_ND.to(type));
  if (!sums_VD.is_same(to_VD)) to_VD.copy_(sums_VD);
}

/// Adds the losses and weights of each group on the host.
/// \param loss_T  times the weights; empty: there are no groups
void add_to_groups(StepSums& sums, const StepSums::Groups& groups, const Targets& targets,
                   const std::vector<double>& loss_T) {
  for (std::size_t t = 0; t < loss_T.size(); ++t) {
    if (targets.ids_N.const_data_ptr<std::int32_t>()[t] < 0) continue;
    const auto group = to_index(targets.groups_N.const_data_ptr<std::int32_t>()[t]);
    sums.named[groups.first + group].value += loss_T[t];
    sums.named[groups.first + groups.count + group].value +=
        targets.weights_N.defined() ? targets.weights_N.const_data_ptr<float>()[t] : 1.0;
  }
}

/// Adds them on the device, with the same bits each time: a loss that is not finite shows in its own group.
/// \param pending  StepSums::pending. \param losses_N  without the weights
void add_to_groups(const at::Tensor& pending, const StepSums::Groups& groups, const Targets& targets,
                   const at::Tensor& losses_N) {
  const auto count = static_cast<std::int64_t>(groups.count);
  auto weights_N = targets.ids_N.ge(0).to(at::kDouble);
  if (targets.weights_N.defined()) weights_N.mul_(targets.weights_N);
  const auto numbers = at::arange(count, targets.groups_N.options()).unsqueeze(1);
  const auto is_in_GN = targets.groups_N.unsqueeze(0).eq(numbers).logical_and(weights_N.ne(0));
  const auto zero = at::zeros({}, weights_N.options());
  const auto sum_of = [&](const at::Tensor& values_N) {
    return at::where(is_in_GN, values_N.unsqueeze(0), zero).sum(1);
  };
  const auto first = 2 + static_cast<std::int64_t>(groups.first);
  pending.narrow(0, first, count).add_(sum_of(weights_N * losses_N));
  pending.narrow(0, first + count, count).add_(sum_of(weights_N));
}

}  // namespace

at::Tensor Ops::row_positions(std::int64_t n, const TokenPositions& place) const {
  if (place.positions_N.defined()) return place.positions_N;
  const auto options = at::TensorOptions(at::kLong).device(device());
  return at::arange(n, options).remainder(place.row_length).add_(place.first_position);
}

at::Tensor Ops::select_rows(const at::Tensor& from_PD, const at::Tensor& rows_N) const {
  return from_PD.index_select(0, rows_N);
}

at::Tensor Ops::embed(const at::Tensor& token_VD, const at::Tensor& position_PD, const at::Tensor& ids_N,
                      const TokenPositions& place) const {
  const auto n = ids_N.size(0), dim = token_VD.size(1);
  at::Tensor out_ND;
  auto counted = work_.rows(0, {});
  if (cpu_ != nullptr) {
    out_ND = at::empty({n, dim}, token_VD.options());
    const kernels::EmbedArgs args{out_ND.data_ptr(),
                                  token_VD.const_data_ptr(),
                                  data_or_null(position_PD),
                                  ids_N.const_data_ptr<std::int32_t>(),
                                  place.row_length,
                                  place.first_position,
                                  dim,
                                  positions_or_null(place)};
    launch(n, row_grain(dim), [&](auto b, auto e) { cpu_->embed(kernel_type(token_VD), args, b, e); });
  } else if (const auto* fused = n > 0 ? fused_for({&token_VD, &position_PD}) : nullptr) {
    out_ND = at::empty({n, dim}, token_VD.options());
    const auto *token = address_of(token_VD), *position = address_of(position_PD);
    auto* out = address_in(out_ND);
    fused->embed({kernel_type(token_VD), out, token, position, ids_of(ids_N), n, place.row_length, place.first_position,
                  ids_of(place.positions_N), static_cast<int>(dim), are_packed(dim, {out, token, position})});
  } else if (position_PD.defined()) {
    const auto positions_N = row_positions(n, place);
    out_ND = select_rows(token_VD, ids_N).add_(select_rows(position_PD, positions_N));
  } else {
    out_ND = select_rows(token_VD, ids_N);
  }
  counted.touch(position_PD.defined() ? 3 : 2, {&out_ND});
  return out_ND;
}

void Ops::embed_backward(at::Tensor* grad_token_VD, at::Tensor* grad_position_PD, const at::Tensor& grad_ND,
                         const at::Tensor& ids_N, const TokenPositions& place) const {
  const auto counted =
      work_.pass(3 * work_.bytes({&grad_ND}) + (grad_token_VD != nullptr ? work_.bytes({grad_token_VD}) : 0));
  const auto n = grad_ND.size(0), dim = grad_ND.size(1);
  if (cpu_ != nullptr) {
    const auto* ids = ids_N.const_data_ptr<std::int32_t>();
    const auto* positions = positions_or_null(place);
    // Kernels add to float32 or to the dtype that they read.
    const auto wire = (grad_token_VD != nullptr ? grad_token_VD : grad_position_PD)->scalar_type();
    const auto values_ND = wire == at::kFloat ? grad_ND : grad_ND.to(wire);
    auto sum_D = at::empty({dim}, grad_ND.options().dtype(at::kFloat));
    launch(1, 1, [&](std::int64_t, std::int64_t) {
      if (grad_token_VD != nullptr)
        add_rows(
            *cpu_, *grad_token_VD, values_ND, [&](auto t) { return ids[t]; }, sum_D);
      if (grad_position_PD == nullptr) return;
      const auto position = [&](auto t) { return positions != nullptr ? positions[t] : t % place.row_length; };
      add_rows(*cpu_, *grad_position_PD, values_ND, position, sum_D);
    });
    return;
  }
  if (const auto* fused = fused_for({&grad_ND})) {
    const auto add = [&](at::Tensor* to_VD, const std::int32_t* ids) {
      if (to_VD == nullptr) return;
      const fused::GradTarget to{address_in(*to_VD), kernel_type(*to_VD), true};
      fused->embed_backward({kernel_type(grad_ND), address_of(grad_ND), ids, to, n, place.row_length,
                             static_cast<int>(dim), are_packed(dim, {address_of(grad_ND), to.data})});
    };
    add(grad_token_VD, ids_of(ids_N));
    add(grad_position_PD, ids_of(place.positions_N));
    return;
  }
  if (grad_token_VD != nullptr) plain_add_rows(*grad_token_VD, ids_N, grad_ND);
  if (grad_position_PD != nullptr) plain_add_rows(*grad_position_PD, row_positions(n, place), grad_ND);
}

// --- rotary positions

RopeTable Ops::rope_table(std::span<const float> frequencies, std::int64_t positions) const {
  // The table outlives the layer that requests it first, so it is not an activation.
  const MemoryScope scope(MemoryCategory::workspace);
  const auto half = std::ssize(frequencies);
  const auto options = at::TensorOptions(at::kFloat).device(host());
  RopeTable table{at::empty({positions, half}, options), at::empty({positions, half}, options)};
  launch(1, 1, [&](std::int64_t, std::int64_t) {
    auto* cosine = table.cos_PH.data_ptr<float>();
    auto* sine = table.sin_PH.data_ptr<float>();
    for (std::int64_t p = 0; p < positions; ++p) {
      for (const float frequency : frequencies) {
        // The angle is rounded to float32 as in transformers, an error of 5e-4 at position 16,384.
        const float angle = static_cast<float>(p) * frequency;
        *cosine++ = static_cast<float>(std::cos(static_cast<double>(angle)));
        *sine++ = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  });
  return {to_device(table.cos_PH), to_device(table.sin_PH)};
}

void Ops::rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table,
               const TokenPositions& place, bool inverse) const {
  const auto counted =
      work_.pass(2 * work_.bytes({&x_NC}) * static_cast<double>(heads * head_size) / static_cast<double>(x_NC.size(1)));
  const auto pairs = table.cos_PH.size(1);
  if (cpu_ != nullptr) {
    const kernels::RopeArgs args{x_NC.data_ptr(),
                                 x_NC.stride(0),
                                 heads,
                                 head_size,
                                 pairs,
                                 table.cos_PH.const_data_ptr<float>(),
                                 table.sin_PH.const_data_ptr<float>(),
                                 place.row_length,
                                 place.first_position,
                                 inverse,
                                 positions_or_null(place)};
    launch(x_NC.size(0), row_grain(heads * head_size),
           [&](auto b, auto e) { cpu_->rope(kernel_type(x_NC), args, b, e); });
    return;
  }
  const bool whole_heads = 2 * pairs == head_size;
  if (fused_ != nullptr && has_kernel_type(x_NC) && x_NC.numel() > 0 && x_NC.stride(1) == 1 && whole_heads) {
    const auto stride = x_NC.stride(0);
    fused::Heads pass{};
    pass.type = kernel_type(x_NC);
    pass.to_NC = address_in(x_NC);
    pass.to_stride = stride;
    pass.parts[0] = {pass.to_NC, place.row_length * stride, head_size, stride, static_cast<int>(heads)};
    pass.num_parts = 1;
    pass.rotated_heads = static_cast<int>(heads);
    pass.head_size = static_cast<int>(head_size);
    pass.cos_PH = floats_of(table.cos_PH);
    pass.sin_PH = floats_of(table.sin_PH);
    pass.rows = x_NC.size(0);
    pass.row_length = place.row_length;
    pass.first_position = place.first_position;
    pass.positions_N = ids_of(place.positions_N);
    pass.inverse = inverse;
    pass.packed = stride % 8 == 0 && are_packed(head_size / 2, {pass.to_NC, pass.cos_PH, pass.sin_PH});
    fused_->heads(pass);
    return;
  }
  const auto positions_N = row_positions(x_NC.size(0), place);
  const auto pick = [&](const at::Tensor& from_PH) { return select_rows(from_PH, positions_N).unsqueeze(1); };
  const auto cosine = pick(table.cos_PH);  // [N, 1, pairs]
  const auto sine = pick(table.sin_PH).mul(inverse ? -1.0 : 1.0);
  auto rotated = x_NC.narrow(1, 0, heads * head_size)
                     .unflatten(1, {heads, head_size})
                     .narrow(2, 0, 2 * pairs)
                     .unflatten(2, {2, pairs});
  const auto low = rotated.select(2, 0).to(at::kFloat);
  const auto high = rotated.select(2, 1).to(at::kFloat);
  const auto new_low = low * cosine - high * sine;
  const auto new_high = high * cosine + low * sine;
  rotated.select(2, 0).copy_(new_low);
  rotated.select(2, 1).copy_(new_high);
}

// --- loss

at::Tensor Ops::log_softmax(const at::Tensor& logits_NV) const { return at::log_softmax(logits_NV, 1, at::kFloat); }

void Ops::cross_entropy(StepSums& sums, at::Tensor& logits_NV, const Targets& targets, std::int64_t vocab,
                        const GradScale& grad_scale, at::Tensor* losses_N) const {
  const auto counted = work_.rows(losses_N != nullptr ? 1 : 3, {&logits_NV});
  const auto n = logits_NV.size(0), width = logits_NV.size(1);
  const auto groups = targets.groups_N.defined() ? sums.groups() : StepSums::Groups();
  if (cpu_ != nullptr) {
    std::vector<double> loss_T(groups.count > 0 ? to_index(n) : 0);
    if (losses_N != nullptr) *losses_N = at::empty({n}, at::TensorOptions(logits_NV.device()).dtype(at::kDouble));
    const kernels::CrossEntropyArgs args{
        logits_NV.data_ptr(),
        targets.ids_N.const_data_ptr<std::int32_t>(),
        targets.weights_N.defined() ? targets.weights_N.const_data_ptr<float>() : nullptr,
        vocab,
        width,
        static_cast<float>(grad_scale.value),
        grad_scale.value != 0,
        losses_N != nullptr ? losses_N->mutable_data_ptr<double>()
        : groups.count > 0  ? loss_T.data()
                            : nullptr};
    const std::int64_t chunks = std::clamp<std::int64_t>(n, 1, at::get_num_threads());
    std::vector<kernels::LossSum> parts(static_cast<std::size_t>(chunks));
    launch(chunks, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t c = first; c < last; ++c) {
        element(parts, c) = cpu_->cross_entropy(kernel_type(logits_NV), args, n * c / chunks, n * (c + 1) / chunks);
      }
    });
    kernels::LossSum all;
    for (const auto& part : parts) {
      all.nats += part.nats;
      all.weight += part.weight;
    }
    sums.nats += all.nats;
    sums.weight += all.weight;
    add_to_groups(sums, groups, targets, loss_T);
    return;
  }
  const auto pending = sums.on_device(logits_NV.options());
  if (const auto* fused = fused_for({&logits_NV})) {
    const auto of_targets_N = at::empty({n}, logits_NV.options().dtype(at::kFloat));
    auto* logits = address_in(logits_NV);
    fused->cross_entropy({kernel_type(logits_NV), logits, ids_of(targets.ids_N), floats_of(targets.weights_N),
                          floats_in(of_targets_N), static_cast<double*>(address_in(pending)),
                          static_cast<float>(grad_scale.value), floats_of(grad_scale.on_device), grad_scale.value != 0,
                          are_packed(width, {logits}), static_cast<int>(vocab), static_cast<int>(width), n});
    if (groups.count > 0) add_to_groups(pending, groups, targets, of_targets_N);
    if (losses_N != nullptr) *losses_N = of_targets_N;
    return;
  }
  const auto real = logits_NV.narrow(1, 0, vocab);
  const auto counts = targets.ids_N.ge(0);
  const auto target = targets.ids_N.clamp_min(0).to(at::kLong).unsqueeze(1);
  auto log_probs = log_softmax(real);
  auto weights = counts.to(at::kFloat);
  if (targets.weights_N.defined()) weights.mul_(targets.weights_N);
  const auto of_targets_N = log_probs.gather(1, target).squeeze(1).neg_();
  pending.select(0, 0).add_((of_targets_N * weights).sum(at::kDouble));
  if (groups.count > 0) add_to_groups(pending, groups, targets, of_targets_N);
  if (losses_N != nullptr) *losses_N = of_targets_N * counts;
  pending.select(0, 1).add_(targets.weights_N.defined() ? weights.sum(at::kDouble) : counts.sum());
  if (grad_scale.value == 0) return;
  auto grad = log_probs.exp_();
  grad.scatter_add_(1, target, at::zeros({n, 1}, grad.options()).sub_(1));
  const auto weights_N1 = weights.unsqueeze(1);
  grad.mul_(grad_scale.on_device.defined() ? weights_N1.mul(grad_scale.on_device) : weights_N1.mul(grad_scale.value));
  logits_NV.zero_();
  logits_NV.narrow(1, 0, vocab).copy_(grad);
}

at::Tensor Ops::entropies(const at::Tensor& logits_NV, const at::Tensor& targets_N, std::int64_t vocab) const {
  const auto counted = work_.rows(1, {&logits_NV});
  const auto n = logits_NV.size(0), width = logits_NV.size(1);
  if (cpu_ != nullptr) {
    auto entropies_N = at::empty({n}, at::TensorOptions(logits_NV.device()).dtype(at::kDouble));
    const kernels::EntropyArgs args{logits_NV.const_data_ptr(), targets_N.const_data_ptr<std::int32_t>(), vocab, width,
                                    entropies_N.mutable_data_ptr<double>()};
    launch(n, 1,
           [&](std::int64_t first, std::int64_t last) { cpu_->entropies(kernel_type(logits_NV), args, first, last); });
    return entropies_N;
  }
  if (const auto* fused = fused_for({&logits_NV})) {
    auto entropies_N = at::empty({n}, logits_NV.options().dtype(at::kFloat));
    const auto* logits = address_of(logits_NV);
    fused->entropies({kernel_type(logits_NV), logits, ids_of(targets_N), floats_in(entropies_N),
                      are_packed(width, {logits}), static_cast<int>(vocab), static_cast<int>(width), n});
    return entropies_N;
  }
  constexpr double kLowest = -100;  // e^-100 times it is 0; that of -inf would be no number
  const auto log_probs = log_softmax(logits_NV.narrow(1, 0, vocab));
  return log_probs.exp().mul_(log_probs.clamp_min(kLowest)).sum(1).neg_().mul_(targets_N.ge(0));
}

void Ops::fetch(StepSums& sums) const {
  if (!sums.pending.defined()) return;
  sums.add(read(sums.pending));
  sums.pending.reset();
}

}  // namespace fsdp
