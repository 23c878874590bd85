#include "apps/common/optimizer_options.hpp"

#include "apps/common/torch_main.hpp"

namespace fsdp {

TakeText take_float_type(std::optional<c10::ScalarType>& value, const char* option) {
  return [&value, option](const std::string& text) {
    value = text.empty() ? std::nullopt : std::optional(parse_float_type(text, option));
  };
}

namespace {

void add_schedule_options(CLI::App& app, TrainOptions& o) {
  const auto* group = "Optimizer";  // "fine-tuning" is a --model with weights: apply_fine_tuning_defaults()
  app.add_option("--lr,--learning-rate,--learning_rate", o.lr, "peak learning rate (fine-tuning: 1e-5)")
      ->capture_default_str()
      ->group(group);
  app.add_option_function<std::string>(
         spellings("lr-schedule"), [&](const std::string& text) { o.lr_schedule = parse_lr_schedule(text); },
         "constant, linear or cosine, after the warm-up (fine-tuning: linear)")
      ->default_str("constant")
      ->group(group);
  app.add_option(spellings("warmup-steps"), o.warmup_steps, "steps of linear warm-up")
      ->capture_default_str()
      ->group(group);
  app.add_option(
         spellings("warmup-ratio"), o.warmup_ratio,
         "warm-up as a share of the schedule, where no steps are given (fine-tuning with its own schedule: 0.1)")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0))
      ->group(group);
  app.add_option(spellings("schedule-steps"), o.schedule_steps, "length of the schedule; 0: the run's")
      ->capture_default_str()
      ->group(group);
}

void add_adafactor_options(CLI::App& app, AdafactorOptions& o) {
  const auto* group = "Optimizer";
  app.add_option_function<std::string>(
         spellings("adafactor-variant"),
         [&](const std::string& text) {
           if (text != "torch" && text != "transformers")
             throw UsageError("--adafactor-variant is '" + text + "', choose from torch, transformers");
           o.transformers = text == "transformers";
         },
         "whose adafactor: torch or transformers, to which the options below belong")
      ->default_str("torch")
      ->group(group);
  app.add_flag(spellings("relative-step"), o.relative_step, "a learning rate of 1/sqrt(step), at most 0.01")
      ->group(group);
  app.add_flag(spellings("warmup-init"), o.warmup_init, "with --relative-step: at most 1e-6 times the step")
      ->group(group);
  app.add_flag(spellings("scale-parameter"), o.scale_parameter, "rates relative to a parameter's root mean square")
      ->group(group);
  app.add_option(spellings("adafactor-beta1"), o.beta1, "average updates with this weight of the old; 0: off")
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_optimizer_options(CLI::App& app, TrainOptions& o) {
  add_schedule_options(app, o);
  const auto* group = "Optimizer";
  app.add_option_function<std::string>(
         spellings("optimizer"), [&](const std::string& text) { o.optimizer = parse_optimizer(text); },
         "adamw, adamw8bit, torchao-adamw8bit, torchao-adamw4bit, anyprecision, adafactor, lion, lion8bit, muon or "
         "sgd; the "
         "Hugging Face trainer's names are known")
      ->default_str("adamw")
      ->group(group);
  app.add_option(spellings("weight-decay"), o.weight_decay, "of matrices (fine-tuning: 0.01)")
      ->capture_default_str()
      ->group(group);
  app.add_option("--betas", o.betas,
                 "of adamw and its kin, muon's too, and of lion, whose own are 0.9 0.99 (fine-tuning: 0.9 0.999)")
      ->expected(2)
      ->capture_default_str()
      ->group(group);
  app.add_option("--eps", o.eps, "of adamw and its kin")->capture_default_str()->group(group);
  app.add_flag(spellings("decay-all"), o.decay_all, "decay vectors too, as plain torch AdamW does (fine-tuning: on)")
      ->group(group);
  app.add_option(spellings("clip-grad-norm"), o.clip_grad_norm, "global norm to clip to; 0: off")
      ->capture_default_str()
      ->group(group);
  app.add_option("--momentum", o.momentum, "of sgd, and of muon, whose own is 0.95")->default_str("0")->group(group);
  app.add_option_function<std::string>(
         spellings("muon-adjust-lr"),
         [&](const std::string& text) {
           if (text != "match-rms-adamw" && text != "match_rms_adamw" && text != "original")
             throw UsageError("--muon-adjust-lr is '" + text + "', choose from match-rms-adamw, original");
           o.muon_adjust_lr = text == "original" ? MuonAdjustLr::original : MuonAdjustLr::match_rms_adamw;
         },
         "muon's updates of matrices: as large as AdamW's, by which the rest is trained, or as Jordan's")
      ->default_str("match-rms-adamw")
      ->group(group);
  app.add_flag("--nesterov", o.nesterov, "sgd looks ahead")->group(group);
  app.add_option_function<std::string>(spellings("momentum-dtype"),
                                       take_float_type(o.momentum_dtype, "--momentum-dtype"),
                                       "of anyprecision's first moment: float32 (default) or bf16")
      ->group(group);
  app.add_option_function<std::string>(spellings("variance-dtype"),
                                       take_float_type(o.variance_dtype, "--variance-dtype"),
                                       "of anyprecision's second moment: bf16 (default) or float32")
      ->group(group);
  app.add_flag("--kahan", o.kahan, "anyprecision keeps, in bf16, what rounding takes from an update")->group(group);
  app.add_flag("--quantize-all", o.eight_bit.everything,
               "adamw8bit and its kin keep embeddings and vectors in few bits, too")
      ->group(group);
  app.add_option("--min-8bit-size,--min_8bit_size", o.eight_bit.least_elements,
                 "elements from which on adamw8bit and its kin keep a parameter's state in few bits")
      ->capture_default_str()
      ->group(group);
  add_adafactor_options(app, o.adafactor);
}

}  // namespace fsdp
