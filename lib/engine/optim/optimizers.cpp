// The optimizers whose updates are elementwise, and the table of all.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lib/base/types/error.hpp"
#include "lib/base/types/named_values.hpp"
#include "lib/engine/optim/optimizer.hpp"

namespace fsdp {
namespace {

/// Loshchilov and Hutter, 2019; torch/optim/adamw.py.
class AdamW final : public Optimizer {
 public:
  explicit AdamW(OptimizerInput input) : Optimizer(std::move(input)) {
    add_state("exp_avg");
    add_state("exp_avg_sq");
  }
  std::string name() const override { return "AdamW"; }
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

float float_of(double value) { return static_cast<float>(value); }

/// torchdistx's AnyPrecisionAdamW: AdamW whose moments, and params, are float32 or bf16. The result of each operation
/// is rounded to the dtype of the tensor that keeps it. With `compensation` (bf16), the rounding error of a parameter's
/// update is carried over to the next update (Kahan summation).
class AnyPrecision final : public Optimizer {
 public:
  explicit AnyPrecision(OptimizerInput input) : Optimizer(std::move(input)) {
    add_state("exp_avg", options().momentum_dtype.value_or(at::kFloat));
    add_state("exp_avg_sq", options().variance_dtype.value_or(at::kBFloat16));
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
    const auto beta1 = options().beta1, beta2 = options().beta2, eps = options().eps;
    // Bias corrections are float32, as in torchdistx: low-precision moments show any other rounding.
    const auto power = [&](double beta) { return std::pow(float_of(beta), static_cast<float>(group.step)); };
    const float step_size = float_of(group.lr) / (1.0f - power(beta1)), correction = std::sqrt(1.0f - power(beta2));
    ElementwiseUpdate u{group};
    u.states = {states("exp_avg", params), states("exp_avg_sq", params)};
    if (options().kahan) u.states.push_back(states("compensation", params));
    u.kernel = "anyprecision";
    u.numbers = {float_of(beta1), float_of(beta2), float_of(1 - beta1), float_of(1 - beta2),
                 float_of(eps),   step_size,       correction};
    u.formula = [=, decay_factor = 1 - group.lr * group.weight_decay](const UpdatedTensors& t) {
      const auto &param = t.param, &momentum = t.states[0], &variance = t.states[1];
      // Computes in float32 and rounds after each operation: 16-bit operators of ATen may round a factor such as beta2
      // first.
      const auto rounded = [](const at::Tensor& x, const at::Tensor& like) {
        return x.to(like.scalar_type()).to(at::kFloat);
      };
      auto rest1 = at::full({}, 1 - beta1, t.grad.options());
      if (param.scalar_type() == at::kBFloat16) rest1 = rounded(rest1, momentum);
      const auto m = rounded(rounded(momentum.to(at::kFloat).mul(beta1), momentum).addcmul(t.grad, rest1), momentum);
      momentum.copy_(m);
      const auto v =
          rounded(rounded(variance.to(at::kFloat).mul(beta2), variance).addcmul(t.grad, t.grad, 1 - beta2), variance);
      variance.copy_(v);
      const auto least = at::full({}, eps, v.options()).to(variance.scalar_type()).to(at::kFloat);
      const auto root = rounded(rounded(v.sqrt(), variance).div(correction), variance);
      const auto update = m.div(rounded(root.add(least), variance)).mul_(-step_size);
      const auto before = rounded(param.to(at::kFloat).mul(decay_factor), param);
      if (t.states.size() == 2) {
        param.copy_(before.add(update));
        return;
      }
      const auto& compensation = t.states[2];
      const auto wanted = rounded(compensation.to(at::kFloat).add(update), compensation);
      param.copy_(before.add(wanted));
      compensation.copy_(wanted + rounded(before - param.to(at::kFloat), param));
    };
    ops().update(u);
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
    ops().update(lion_update(group, states("exp_avg", params), options()));
  }
};

/// torch/optim/sgd.py without dampening: g += wd p; b = mu b + g; p -= lr b, or lr (g + mu b) with nesterov.
class Sgd final : public Optimizer {
 public:
  explicit Sgd(OptimizerInput input) : Optimizer(std::move(input)) {
    if (momentum() > 0) add_state("momentum_buffer");
  }
  std::string name() const override { return "SGD"; }
  StepState kind_of_step(std::size_t /*param*/) const override { return StepState::none; }
  nlohmann::json group_fields() const override {
    return {{"momentum", momentum()}, {"dampening", 0}, {"nesterov", options().nesterov}, {"maximize", false}};
  }

 protected:
  void update(const UpdateGroup& group, const std::vector<std::size_t>& params) override {
    const auto momentum = this->momentum();
    const auto nesterov = options().nesterov;
    ElementwiseUpdate u{group};
    if (momentum > 0) u.states = {states("momentum_buffer", params)};
    u.kernel = "sgd";
    u.numbers = {float_of(momentum), nesterov ? 1.0f : 0.0f};
    u.formula = [=, lr = group.lr, weight_decay = group.weight_decay](const UpdatedTensors& t) {
      const auto& step = t.grad.add_(t.param, weight_decay);
      if (!t.states.empty()) {
        const auto& buffer = t.states[0];
        buffer.mul_(momentum).add_(step);
        nesterov ? step.add_(buffer, momentum) : step.copy_(buffer);
      }
      t.param.sub_(step, lr);
    };
    ops().update(u);
  }

 private:
  double momentum() const { return options().momentum.value_or(0); }
};

void check_sgd(const OptimizerOptions& options) {
  if (options.nesterov && options.momentum.value_or(0) == 0) throw RequestError("nesterov needs momentum, which is 0");
}

template <typename Class>
std::unique_ptr<Optimizer> make(OptimizerInput input) {
  return std::make_unique<Class>(std::move(input));
}

constexpr std::array kAdafactorVariants{NamedValue<bool>{"torch", false}, NamedValue<bool>{"transformers", true}};
constexpr std::array kMuonRates{
    NamedValue<MuonAdjustLr>{"match-rms-adamw", MuonAdjustLr::match_rms_adamw},
    NamedValue<MuonAdjustLr>{"original", MuonAdjustLr::original},
    NamedValue<MuonAdjustLr>{"match_rms_adamw", MuonAdjustLr::match_rms_adamw, /*is_listed=*/false}};

}  // namespace

ElementwiseUpdate lion_update(const UpdateGroup& group, const std::vector<at::Tensor>& exp_avg,
                              const OptimizerOptions& options) {
  const auto beta1 = options.beta1, beta2 = options.beta2;
  ElementwiseUpdate u{group};
  u.states = {exp_avg};
  u.kernel = "lion";
  u.numbers = {float_of(beta1), float_of(beta2), float_of(1 - beta1), float_of(1 - beta2)};
  u.formula = [=, lr = group.lr, decay_factor = 1 - group.lr * group.weight_decay](const UpdatedTensors& t) {
    const auto sign = t.states[0].mul(beta1).add_(t.grad, 1 - beta1).sign_();
    t.param.mul_(decay_factor).sub_(sign, lr);
    t.states[0].mul_(beta2).add_(t.grad, 1 - beta2);
  };
  return u;
}

const std::vector<OptimizerType>& optimizer_types() {
  static const std::vector<OptimizerType> types{
      {.name = "adamw",
       .aliases = {"adamw_torch", "adamw_torch_fused", "adamw_hf", "paged_adamw_32bit"},
       .on_device = true,
       .make = make<AdamW>},
      {.name = "adamw8bit",  // this and lion8bit follow bitsandbytes
       .aliases = {"adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"},
       .options = {"quantize-all", "min-8bit-size"},
       .make = make_blockwise},
      {.name = "torchao-adamw8bit",
       .aliases = {"adamw_torch_8bit"},
       .options = {"quantize-all", "min-8bit-size"},
       .make = make_blockwise},
      {.name = "torchao-adamw4bit",
       .aliases = {"adamw_torch_4bit"},
       .options = {"quantize-all", "min-8bit-size"},
       .make = make_blockwise},
      {.name = "anyprecision",
       .aliases = {"adamw_anyprecision"},
       .options = {"momentum-dtype", "variance-dtype", "kahan", "master-dtype"},
       .on_device = true,
       .make = make<AnyPrecision>},
      {.name = "adafactor",
       .options = {"adafactor-variant", "relative-step", "warmup-init", "scale-parameter", "adafactor-beta1"},
       .make = make_adafactor,
       .check = check_adafactor},
      {.name = "lion",
       .aliases = {"lion_32bit", "paged_lion_32bit"},
       .betas = {"0.9", "0.99"},  // the sign of an average needs a longer average
       .on_device = true,
       .make = make<Lion>},
      {.name = "lion8bit",
       .aliases = {"lion_8bit", "paged_lion_8bit"},
       .options = {"quantize-all", "min-8bit-size"},
       .betas = {"0.9", "0.99"},
       .make = make_blockwise},
      {.name = "muon", .options = {"momentum", "muon-adjust-lr"}, .make = make_muon},
      {.name = "sgd", .options = {"momentum", "nesterov"}, .on_device = true, .make = make<Sgd>, .check = check_sgd}};
  return types;
}

std::vector<OptimizerOption> own_options(OptimizerOptions& o) {
  const auto take_muon_rate = [&o](const std::string& text) {
    o.muon_adjust_lr = parse_value(kMuonRates, text, "muon-adjust-lr");
  };
  const auto take_adafactor = [&o](const std::string& text) {
    o.adafactor.transformers = parse_value(kAdafactorVariants, text, "adafactor-variant");
  };
  return {{.name = "momentum",
           .owner = "sgd",
           .help = "momentum of sgd and of muon, whose default is 0.95",
           .default_text = "0",
           .value = &o.momentum,
           .given = o.momentum.has_value()},
          {.name = "muon-adjust-lr",
           .owner = "muon",
           .help = "size of muon's updates: match-rms-adamw (as large as AdamW's) or original (Jordan's)",
           .default_text = "match-rms-adamw",
           .value = take_muon_rate,
           .choices = choices_of(kMuonRates),
           .given = o.muon_adjust_lr.has_value()},
          {.name = "nesterov",
           .owner = "sgd",
           .help = "Nesterov momentum for sgd",
           .value = &o.nesterov,
           .given = o.nesterov},
          {.name = "momentum-dtype",
           .owner = "anyprecision",
           .help = "type of anyprecision's first moment: float32 or bf16; default: float32",
           .value = &o.momentum_dtype,
           .given = o.momentum_dtype.has_value()},
          {.name = "variance-dtype",
           .owner = "anyprecision",
           .help = "type of anyprecision's second moment: float32 or bf16; default: bf16",
           .value = &o.variance_dtype,
           .given = o.variance_dtype.has_value()},
          {.name = "kahan",
           .owner = "anyprecision",
           .help = "anyprecision: keep rounding errors of updates in bf16 and add them later (Kahan summation)",
           .value = &o.kahan,
           .given = o.kahan},
          {.name = "quantize-all",
           .owner = "adamw8bit",
           .help = "optimizers with states of 8 or 4 bits: quantize those of embeddings and vectors, too",
           .value = &o.eight_bit.everything,
           .given = o.eight_bit.everything,
           .has_underscores = false},
          {.name = "min-8bit-size",
           .owner = "adamw8bit",
           .help = "optimizers with states of 8 or 4 bits: elements of the smallest parameter to quantize",
           .value = &o.eight_bit.least_elements,
           .given = o.eight_bit.least_elements != EightBitOptions().least_elements},
          {.name = "adafactor-variant",
           .owner = "adafactor",
           .help = "adafactor: torch or transformers (only this one has adafactor's other options)",
           .default_text = "torch",
           .value = take_adafactor,
           .choices = choices_of(kAdafactorVariants),
           .given = o.adafactor.transformers},
          {.name = "relative-step",
           .owner = "adafactor",
           .help = "adafactor: a learning rate of 1/sqrt(step), at most 0.01",
           .value = &o.adafactor.relative_step,
           .given = o.adafactor.relative_step},
          {.name = "warmup-init",
           .owner = "adafactor",
           .help = "adafactor with --relative-step: a learning rate of at most 1e-6 times the step",
           .value = &o.adafactor.warmup_init,
           .given = o.adafactor.warmup_init},
          {.name = "scale-parameter",
           .owner = "adafactor",
           .help = "adafactor: scale the learning rate by the root mean square of the parameter",
           .value = &o.adafactor.scale_parameter,
           .given = o.adafactor.scale_parameter},
          {.name = "adafactor-beta1",
           .owner = "adafactor",
           .help = "adafactor: weight of earlier updates in the average of updates; 0: no averaging",
           .value = &o.adafactor.beta1,
           .given = o.adafactor.beta1 != 0}};
}

bool OptimizerType::has(std::string_view option) const {
  return std::find(options.begin(), options.end(), option) != options.end();
}

std::string optimizer_choices() {
  std::string names, aliases;
  for (const auto& type : optimizer_types()) {
    names += (names.empty() ? "" : ", ") + std::string(type.name);
    for (const auto alias : type.aliases) aliases += ", " + std::string(alias);
  }
  return names + aliases;
}

const OptimizerType& optimizer_type(std::string_view name, std::string_view option) {
  for (const auto& type : optimizer_types()) {
    if (type.name == name || std::find(type.aliases.begin(), type.aliases.end(), name) != type.aliases.end())
      return type;
  }
  throw RequestError(std::string(option) + " is '" + std::string(name) + "', choose from " + optimizer_choices());
}

bool takes_bf16_gradients(const OptimizerOptions& options) {
  return optimizer_type(options.kind).on_device && options.child_tuning.mode == ChildTuning::off;
}

std::unique_ptr<Optimizer> make_optimizer(OptimizerInput input) {
  const auto& type = optimizer_type(input.options.kind);
  auto optimizer = type.make(std::move(input));
  optimizer->expect_child(false);
  return optimizer;
}

}  // namespace fsdp
