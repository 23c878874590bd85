// Adafactor: second moments as row and column means of squared gradients, with clipped updates.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"
#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/engine/optim/optimizer.hpp"

namespace fsdp {
namespace {

/// torch's defaults; those of transformers differ only in eps1.
constexpr double kDecayRate = -0.8, kLeastSize = 1e-3, kTransformersEps = 1e-30;

class Adafactor final : public Optimizer {
 public:
  explicit Adafactor(OptimizerInput input) : Optimizer(std::move(input)) {
    for (std::size_t i = 0; i < num_params(); ++i) {
      const auto& shape = param(i).layout.shape;
      if (shape.size() == 2) {
        add_matrix_states(i, shape[1]);
      } else {
        add_state(i, key("exp_avg_sq", "variance"));
      }
      if (ours().beta1 > 0) add_state(i, "exp_avg");
    }
  }

  std::string name() const override { return ours().transformers ? "transformers' Adafactor" : "Adafactor"; }
  StepState kind_of_step(std::size_t /*param*/) const override {
    return ours().transformers ? StepState::number : StepState::tensor;
  }
  nlohmann::json group_fields() const override {
    if (!ours().transformers)
      return {{"beta2_decay", kDecayRate}, {"eps", {nullptr, kLeastSize}}, {"d", 1.0}, {"maximize", false}};
    return {{"decay_rate", kDecayRate},
            {"eps", {kTransformersEps, kLeastSize}},
            {"clip_threshold", 1.0},
            {"beta1", ours().beta1 > 0 ? nlohmann::json(ours().beta1) : nlohmann::json()},
            {"relative_step", ours().relative_step},
            {"scale_parameter", ours().scale_parameter},
            {"warmup_init", ours().warmup_init}};
  }

 protected:
  void update(const UpdateGroup& group, const std::vector<std::size_t>& params) override {
    const MemoryScope scope(MemoryCategory::workspace);
    std::int64_t numbers = 0;
    for (const auto i : params) numbers += 2 + columns(i);
    const auto options = group.params.front().options().dtype(at::kDouble);
    const auto sums = at::zeros({numbers}, options);
    const auto sizes = at::zeros({std::ssize(params)}, options);
    std::vector<AdafactorUpdate> updates;
    std::int64_t first = 0;
    for (std::size_t n = 0; n < params.size(); ++n) {
      updates.push_back(update_of(group, n, params[n]));
      updates.back().sums = sums.narrow(0, first, 2 + columns(params[n]));
      updates.back().update_sum = sizes.narrow(0, static_cast<std::int64_t>(n), 1);
      first += 2 + columns(params[n]);
    }
    for (const auto& one : updates) ops().adafactor_statistics(one);
    sum_over_ranks(sums);
    for (const auto& one : updates) ops().adafactor_update_size(one);
    sum_over_ranks(sizes);
    for (const auto& one : updates) ops().adafactor_apply(one);
  }

 private:
  const AdafactorOptions& ours() const { return options().adafactor; }
  const char* key(const char* of_transformers, const char* of_torch) const {
    return ours().transformers ? of_transformers : of_torch;
  }
  bool is_matrix(std::size_t i) const { return param(i).layout.shape.size() == 2; }
  std::int64_t columns(std::size_t i) const { return is_matrix(i) ? param(i).layout.shape[1] : 0; }

  void add_matrix_states(std::size_t i, std::int64_t columns) {
    if (ours().transformers) {
      add_row_state(i, "exp_avg_sq_row", {});
      add_replicated_state(i, "exp_avg_sq_col", {columns});
    } else {
      add_row_state(i, "row_var", {1});
      add_replicated_state(i, "col_var", {1, columns});
    }
  }

  /// Fills everything but the sums.
  AdafactorUpdate update_of(const UpdateGroup& group, std::size_t n, std::size_t i) const {
    const auto rows = [&](const at::Tensor& values) { return values.narrow(0, 0, param(i).range.num_rows); };
    const auto t = static_cast<double>(group.step);
    AdafactorUpdate u;
    u.param = rows(group.params[n]);
    u.grad = rows(group.grads[n]);
    if (is_matrix(i)) {
      u.row_var = rows(state(key("exp_avg_sq_row", "row_var"), i)).view({-1});
      u.col_var = state(key("exp_avg_sq_col", "col_var"), i).view({-1});
    } else {
      u.variance = rows(state(key("exp_avg_sq", "variance"), i));
    }
    if (ours().beta1 > 0) u.exp_avg = rows(state("exp_avg", i));
    u.rows = param(i).layout.rows();
    u.elements = param(i).layout.elements();
    u.grad_divisor = group.grad_divisor;
    u.new_weight = std::pow(t, kDecayRate);
    u.eps2 = kLeastSize;
    u.beta1 = ours().beta1;
    u.transformers = ours().transformers;
    if (ours().transformers) {
      const double longest = ours().warmup_init ? 1e-6 * t : 1e-2;
      u.rate = ours().relative_step ? std::min(longest, 1 / std::sqrt(t)) : group.lr;
      u.scale_parameter = ours().scale_parameter;
      u.relative_decay = group.weight_decay;
      u.eps1 = kTransformersEps;
    } else {
      u.rate = std::min(group.lr, 1 / std::sqrt(t));
      u.scale_parameter = true;
      u.weight_decay_factor = 1 - group.lr * group.weight_decay;
      u.eps1 = std::numeric_limits<float>::epsilon();
    }
    return u;
  }
};

}  // namespace

void check_adafactor(const OptimizerOptions& options) {
  const auto& ours = options.adafactor;
  for (const auto& [given, option] :
       {std::pair(ours.relative_step, "relative-step"), std::pair(ours.warmup_init, "warmup-init"),
        std::pair(ours.scale_parameter, "scale-parameter"), std::pair(ours.beta1 != 0, "adafactor-beta1")}) {
    if (given && !ours.transformers) throw RequestError(std::string(option) + " needs adafactor-variant transformers");
  }
  if (ours.warmup_init && !ours.relative_step) throw RequestError("warmup-init needs relative-step");
}

std::unique_ptr<Optimizer> make_adafactor(OptimizerInput input) {
  return std::make_unique<Adafactor>(std::move(input));
}

}  // namespace fsdp
