// The optimizers: the states of each, and the Ops function that updates them.
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/named_values.hpp"
#include "lib/engine/optim/optimizer.hpp"

namespace fsdp {
namespace {

class AdamW final : public Optimizer {
 public:
  explicit AdamW(OptimizerInput input) : Optimizer(std::move(input)) {
    add_state("exp_avg");
    add_state("exp_avg_sq");
  }
  std::string name() const override { return "AdamW"; }
  bool takes_decisions() const override { return true; }
  nlohmann::json group_fields() const override {
    return {
        {"betas", {options().beta1, options().beta2}}, {"eps", options().eps}, {"amsgrad", false}, {"maximize", false}};
  }

 protected:
  void update(const UpdateGroup& group, const std::vector<std::size_t>& params) override {
    ops().adamw({group, states("exp_avg", params), states("exp_avg_sq", params), options().beta1, options().beta2,
                 options().eps});
  }
};

class AnyPrecision final : public Optimizer {
 public:
  explicit AnyPrecision(OptimizerInput input) : Optimizer(std::move(input)) {
    add_state("exp_avg", options().momentum_dtype);
    add_state("exp_avg_sq", options().variance_dtype);
    if (options().kahan) add_state("compensation", at::kBFloat16);
  }
  std::string name() const override { return "AnyPrecisionAdamW"; }
  nlohmann::json group_fields() const override {
    return {{"betas", {options().beta1, options().beta2}},
            {"eps", options().eps},
            {"use_kahan_summation", options().kahan}};
  }

 protected:
  void update(const UpdateGroup& group, const std::vector<std::size_t>& params) override {
    ops().any_precision({group, states("exp_avg", params), states("exp_avg_sq", params),
                         options().kahan ? states("compensation", params) : std::vector<at::Tensor>(), options().beta1,
                         options().beta2, options().eps});
  }
};

class Lion final : public Optimizer {
 public:
  explicit Lion(OptimizerInput input) : Optimizer(std::move(input)) { add_state("exp_avg"); }
  std::string name() const override { return "Lion"; }
  StepState kind_of_step(std::size_t /*param*/) const override { return StepState::none; }
  nlohmann::json group_fields() const override { return {{"betas", {options().beta1, options().beta2}}}; }

 protected:
  void update(const UpdateGroup& group, const std::vector<std::size_t>& params) override {
    ops().lion({group, states("exp_avg", params), options().beta1, options().beta2});
  }
};

class Sgd final : public Optimizer {
 public:
  explicit Sgd(OptimizerInput input) : Optimizer(std::move(input)) {
    if (options().momentum > 0) add_state("momentum_buffer");
  }
  std::string name() const override { return "SGD"; }
  StepState kind_of_step(std::size_t /*param*/) const override { return StepState::none; }
  nlohmann::json group_fields() const override {
    return {{"momentum", options().momentum}, {"dampening", 0}, {"nesterov", options().nesterov}, {"maximize", false}};
  }

 protected:
  void update(const UpdateGroup& group, const std::vector<std::size_t>& params) override {
    ops().sgd({group, options().momentum > 0 ? states("momentum_buffer", params) : std::vector<at::Tensor>(),
               options().momentum, options().nesterov});
  }
};

using Name = NamedValue<OptimizerKind>;
/// For each kind, this program's name comes first, then those of the Hugging Face trainer.
constexpr std::array kNames{Name{"adamw", OptimizerKind::adamw},
                            Name{"anyprecision", OptimizerKind::anyprecision},
                            Name{"lion", OptimizerKind::lion},
                            Name{"sgd", OptimizerKind::sgd},
                            Name{"adafactor", OptimizerKind::adafactor},
                            Name{"adamw8bit", OptimizerKind::adamw_8bit},
                            Name{"lion8bit", OptimizerKind::lion_8bit},
                            Name{"torchao-adamw8bit", OptimizerKind::adamw_torchao_8bit},
                            Name{"torchao-adamw4bit", OptimizerKind::adamw_torchao_4bit},
                            Name{"muon", OptimizerKind::muon},
                            Name{"adamw_8bit", OptimizerKind::adamw_8bit},
                            Name{"adamw_bnb_8bit", OptimizerKind::adamw_8bit},
                            Name{"adamw_torch", OptimizerKind::adamw},
                            Name{"adamw_torch_fused", OptimizerKind::adamw},
                            Name{"adamw_hf", OptimizerKind::adamw},
                            Name{"adamw_anyprecision", OptimizerKind::anyprecision},
                            Name{"adamw_torch_8bit", OptimizerKind::adamw_torchao_8bit},
                            Name{"adamw_torch_4bit", OptimizerKind::adamw_torchao_4bit},
                            Name{"paged_adamw_32bit", OptimizerKind::adamw},
                            Name{"paged_adamw_8bit", OptimizerKind::adamw_8bit},
                            Name{"lion_32bit", OptimizerKind::lion},
                            Name{"lion_8bit", OptimizerKind::lion_8bit},
                            Name{"paged_lion_32bit", OptimizerKind::lion},
                            Name{"paged_lion_8bit", OptimizerKind::lion_8bit}};

std::unique_ptr<Optimizer> make_plain(OptimizerInput input) {
  switch (input.options.kind) {
    case OptimizerKind::anyprecision:
      return std::make_unique<AnyPrecision>(std::move(input));
    case OptimizerKind::lion:
      return std::make_unique<Lion>(std::move(input));
    case OptimizerKind::sgd:
      return std::make_unique<Sgd>(std::move(input));
    case OptimizerKind::adafactor:
      return make_adafactor(std::move(input));
    case OptimizerKind::adamw_8bit:
    case OptimizerKind::lion_8bit:
    case OptimizerKind::adamw_torchao_8bit:
    case OptimizerKind::adamw_torchao_4bit:
      return make_blockwise(std::move(input));
    case OptimizerKind::muon:
      return make_muon(std::move(input));
    case OptimizerKind::adamw:
      break;
  }
  return std::make_unique<AdamW>(std::move(input));
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(OptimizerInput input) {
  auto optimizer = make_plain(std::move(input));
  optimizer->expect_child(false);
  return optimizer;
}

bool keeps_codes(OptimizerKind kind) {
  return kind == OptimizerKind::adamw_8bit || kind == OptimizerKind::lion_8bit ||
         kind == OptimizerKind::adamw_torchao_8bit || kind == OptimizerKind::adamw_torchao_4bit;
}

OptimizerKind parse_optimizer(std::string_view text) {
  if (const auto kind = find_value(kNames, text)) return *kind;
  std::string choices;
  for (const auto& name : kNames) choices += (choices.empty() ? "" : ", ") + std::string(name.text);
  throw UsageError("--optimizer is '" + std::string(text) + "', choose from " + choices);
}

std::string_view to_string(OptimizerKind kind) { return name_of(kNames, kind); }

}  // namespace fsdp
