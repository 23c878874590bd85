// Muon for the matrices of the blocks, AdamW for everything else.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/compute/tensor/memory_scope.hpp"
#include "lib/engine/optim/optimizer.hpp"

namespace fsdp {
namespace {

class Muon final : public Optimizer {
 public:
  explicit Muon(OptimizerInput input) : Optimizer(std::move(input)) {
    for (std::size_t i = 0; i < num_params(); ++i) {
      if (is_hidden_matrix(i)) {
        add_state(i, "momentum_buffer");
      } else {
        add_state(i, "exp_avg");
        add_state(i, "exp_avg_sq");
      }
    }
  }

  std::string name() const override { return "Muon"; }
  StepState kind_of_step(std::size_t param) const override {
    return is_hidden_matrix(param) ? StepState::none : StepState::tensor;
  }
  nlohmann::json group_fields() const override {
    return {{"momentum", momentum()},
            {"nesterov", true},
            {"ns_coefficients", {3.4445, -4.775, 2.0315}},
            {"ns_steps", 5},
            {"adjust_lr_fn", matches_adamw() ? "match_rms_adamw" : "original"},
            {"betas", {options().beta1, options().beta2}},
            {"eps", options().eps}};
  }

 protected:
  void update(const UpdateGroup& group, const std::vector<std::size_t>& params) override {
    const MemoryScope scope(MemoryCategory::workspace);
    std::vector<std::size_t> hidden, rest;
    for (std::size_t n = 0; n < params.size(); ++n) (is_hidden_matrix(params[n]) ? hidden : rest).push_back(n);
    adamw_update(group, params, rest, {"exp_avg", "exp_avg_sq"});
    // A round has one matrix per rank, all of the same shape.
    const auto shape = [&](std::size_t n) -> const auto& { return param(params[n]).layout.shape; };
    std::stable_sort(hidden.begin(), hidden.end(), [&](auto a, auto b) { return shape(a) < shape(b); });
    for (std::size_t first = 0; first < hidden.size();) {
      std::vector<MuonUpdate> round;
      const auto& of_round = param(params[hidden[first]]);
      for (; first < hidden.size() && shape(hidden[first]) == of_round.layout.shape &&
             round.size() < static_cast<std::size_t>(num_ranks());
           ++first)
        round.push_back(update_of(group, hidden[first], params[hidden[first]]));
      take_round(round, of_round);
    }
  }

 private:
  double momentum() const { return options().momentum.value_or(0.95); }
  bool matches_adamw() const { return options().muon_adjust_lr != MuonAdjustLr::original; }
  bool is_hidden_matrix(std::size_t i) const { return param(i).in_block && param(i).layout.shape.size() == 2; }

  /// Describes the update of this rank's rows.
  MuonUpdate update_of(const UpdateGroup& group, std::size_t n, std::size_t i) const {
    const auto rows = [&](const at::Tensor& x) { return x.narrow(0, 0, param(i).range.num_rows); };
    const auto height = static_cast<double>(param(i).layout.shape[0]),
               width = static_cast<double>(param(i).layout.shape[1]);
    const double adjusted =
        matches_adamw() ? 0.2 * std::sqrt(std::max(height, width)) : std::sqrt(std::max(1.0, height / width));
    MuonUpdate u;
    u.param = rows(group.params[n]);
    u.grad = rows(group.grads[n]);
    u.momentum_buffer = rows(state("momentum_buffer", i));
    u.momentum = momentum();
    u.lr = group.lr;
    u.rate = group.lr * adjusted;
    u.weight_decay = group.weight_decay;
    u.grad_divisor = group.grad_divisor;
    return u;
  }

  /// Rank k orthogonalises matrix k of a round: it receives the matrix's rows from all ranks and returns them.
  void take_round(const std::vector<MuonUpdate>& round, const OptimizerParam& like) const {
    const auto& [first_row, num_rows, padded_rows] = like.range;
    const auto columns = like.layout.shape[1];
    const auto directions =
        at::zeros({num_ranks(), padded_rows, columns}, at::TensorOptions(at::kBFloat16).device(ops().device()));
    for (std::size_t k = 0; k < round.size(); ++k)
      ops().muon_direction(round[k], directions[static_cast<std::int64_t>(k)].narrow(0, 0, num_rows));
    const auto whole = exchange(directions);
    if (static_cast<std::size_t>(rank()) < round.size()) {
      const auto matrix = whole.view({-1, columns}).narrow(0, 0, like.layout.rows());
      matrix.copy_(ops().orthogonalize(matrix));
    }
    const auto orthogonal = exchange(whole);
    for (std::size_t k = 0; k < round.size(); ++k)
      ops().muon_apply(round[k], orthogonal[static_cast<std::int64_t>(k)].narrow(0, 0, num_rows));
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(OptimizerInput input) { return std::make_unique<Muon>(std::move(input)); }

}  // namespace fsdp
