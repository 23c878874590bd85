#include <array>

#include "apps/common/app_main.hpp"
#include "apps/common/finetune_options.hpp"
#include "apps/common/quantize_options.hpp"
#include "apps/common/torch_main.hpp"
#include "lib/base/error.hpp"

namespace fsdp {

CLI::Option* add_float_type(CLI::App& app, const std::string& name, std::optional<c10::ScalarType>& value,
                            const std::string& help) {
  const auto parse = [&value, name](const std::string& text) {
    value = text.empty() ? std::nullopt : std::optional(parse_value(kFloatTypes, text, "--" + name));
  };
  return name_choices(app.add_option_function<std::string>(spellings(name), parse, help), choices_of(kFloatTypes));
}

namespace {

constexpr std::array kAdafactorVariants{NamedValue<bool>{"torch", false}, NamedValue<bool>{"transformers", true}};
constexpr std::array kMuonRates{
    NamedValue<MuonAdjustLr>{"match-rms-adamw", MuonAdjustLr::match_rms_adamw},
    NamedValue<MuonAdjustLr>{"original", MuonAdjustLr::original},
    NamedValue<MuonAdjustLr>{"match_rms_adamw", MuonAdjustLr::match_rms_adamw, /*is_listed=*/false}};
constexpr std::array kFinals{NamedValue<bool>{"last", false}, NamedValue<bool>{"best", true}};

/// The names that parse_optimizer() knows.
std::string optimizer_names() {
  try {
    parse_optimizer("?");
  } catch (const UsageError& error) {
    const std::string text = error.what();
    return text.substr(text.find("choose from ") + 12);
  }
  return "";
}

void add_schedule_options(CLI::App& app, TrainOptions& o) {
  const auto* group = "Optimizer";  // "fine-tuning" in the help: apply_fine_tuning_defaults()
  app.add_option("--lr,--learning-rate,--learning_rate", o.lr, "peak learning rate (fine-tuning: 1e-5)")
      ->capture_default_str()
      ->group(group);
  add_choice(app, spellings("lr-schedule"), kLrShapes, o.lr_schedule,
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
  add_choice(app, spellings("adafactor-variant"), kAdafactorVariants, o.transformers,
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
  name_choices(
      app.add_option_function<std::string>(
          spellings("optimizer"), [&](const std::string& text) { o.optimizer = parse_optimizer(text); },
          "adamw, adamw8bit, torchao-adamw8bit, torchao-adamw4bit, anyprecision, adafactor, lion, lion8bit, muon or "
          "sgd; the "
          "Hugging Face trainer's names are known"),
      optimizer_names())
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
  add_choice(app, spellings("muon-adjust-lr"), kMuonRates, o.muon_adjust_lr,
             "muon's updates of matrices: as large as AdamW's, by which the rest is trained, or as Jordan's")
      ->default_str("match-rms-adamw")
      ->group(group);
  app.add_flag("--nesterov", o.nesterov, "sgd looks ahead")->group(group);
  add_float_type(app, "momentum-dtype", o.momentum_dtype, "of anyprecision's first moment: float32 (default) or bf16")
      ->group(group);
  add_float_type(app, "variance-dtype", o.variance_dtype, "of anyprecision's second moment: bf16 (default) or float32")
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

namespace {

constexpr const char* kGroup = "What is trained";

void add_freeze_options(CLI::App& app, FreezeOptions& o) {
  app.add_option("--freeze", o.freeze,
                 "parameters that stay as they are, without gradient and optimizer state: names or globs, of modules "
                 "too, with commas between (model.embed_tokens,'model.layers.[0-9].*')")
      ->delimiter(',')
      ->group(kGroup);
  app.add_option(spellings("train-only"), o.train_only,
                 "freeze all others ('*.mlp.*'); of these, what --freeze matches")
      ->delimiter(',')
      ->group(kGroup);
}

void add_child_tuning_options(CLI::App& app, TrainOptions& o) {
  add_choice(app, spellings("child-tuning"), kChildTunings, o.child_tuning,
             "gradients for a part of the elements: f (another at random at every step) or d (those of the blocks that "
             "matter most to the data, measured before the first step)")
      ->default_str("off")
      ->group(kGroup);
  app.add_option("--child-tuning-p,--child_tuning_p,--reserve-p,--reserve_p", o.child_tuning_p,
                 "share of the elements that have gradients")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option(spellings("fisher-samples"), o.fisher_samples, "sequences that --child-tuning d measures with; 0: all")
      ->capture_default_str()
      ->group(kGroup);
}

void add_lora_options(CLI::App& app, TrainOptions& options) {
  auto& o = options.sharding.lora;
  app.add_option(spellings("lora-rank"), o.rank, "train adapters of this rank in place of the model; 0: the model")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option(spellings("lora-alpha"), o.alpha, "adapters count alpha / rank times")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option(spellings("lora-dropout"), o.dropout, "probability of zeroing an input of an adapter while training")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option(spellings("lora-targets"), o.targets, "matrices that have adapters: all, or q_proj,v_proj,...")
      ->delimiter(',')
      ->default_str("all")
      ->group(kGroup);
  app.add_flag("--rslora", o.rslora, "adapters count alpha / sqrt(rank) times")->group(kGroup);
  app.add_flag("--dora", o.dora, "train the lengths of the matrices' rows, too")->group(kGroup);
  app.add_option("--adapter", options.adapter, "go on from an adapter as peft writes it: a directory")->group(kGroup);
  app.add_option(spellings("save-final-adapter"), options.save_final_adapter,
                 "at the end write the adapter there, too, as peft does; always in OUT/RUN/adapter")
      ->group(kGroup);
}

}  // namespace

void add_method_options(CLI::App& app, TrainOptions& o) {
  add_lora_options(app, o);
  add_quantize_options(app, o.sharding.quantize,
                       "under adapters, keep the matrices of the blocks in 4 bits (QLoRA): nf4; as they are: none. "
                       "Weights stored in 4 bits stay so",
                       kGroup);
  add_freeze_options(app, o.sharding.freeze);
  add_child_tuning_options(app, o);
}

void add_validation_options(CLI::App& app, TrainOptions& o) {
  const auto* group = "Validation";
  auto& v = o.validation;
  app.add_option(spellings("val-data"), o.val_data,
                 "what to validate on, as --train-data; or several of them, each with a curve of its own: "
                 "NAME=PATH,NAME=PATH")
      ->group(group);
  app.add_option(spellings("eval-every"), o.eval_every, "optimizer steps between validations; 0: at the end only")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("val-chess"), v.games.data,
                 "games of chess to play at each validation, as fsdp-eval --chess: next move, legality, result")
      ->group(group);
  app.add_option(spellings("val-chess-games"), v.games.most, "the first games of --val-chess; 0: all")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("val-chess-positions"), v.games.positions, "positions at which legality is tried")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("keep-best"), v.keep_best,
                 "keep the checkpoint of the lowest validation loss as checkpoints/best; of several sets: the first "
                 "one's, or NAME's; or of the highest chess_legal, chess_accuracy or chess_result of --val-chess")
      ->expected(0, 1)  // no default_str(): CLI11 would use it when the value is left out
      ->group(group);
  app.add_option(spellings("patience"), v.patience,
                 "end the run, as one that is done, after so many validations in a row without improvement; 0: none")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("min-delta"), v.min_delta,
                 "by how much a loss must be lower, or a share of chess higher, to be an improvement")
      ->capture_default_str()
      ->group(group);
  add_choice(app, "--final", kFinals, v.ends_with_best,
             "which weights --save-final-full, --save-final-hf, adapters and --prompt take at the end: last or best")
      ->default_str("last")
      ->group(group);
  app.add_option(spellings("sample-prompt"), v.sample_prompts,
                 "go on from this text at each validation, into samples.jsonl; may be repeated")
      ->expected(1)
      ->allow_extra_args(false)  // otherwise CLI11 splits a text in brackets at its commas
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  app.add_flag(spellings("sample-chat"), v.sample_chat,
               "each --sample-prompt is a user's message in the --chat-template, and the sample the answer")
      ->group(group);
  app.add_option(spellings("sample-tokens"), v.sample_tokens, "tokens of each sample, the most likely one each time")
      ->capture_default_str()
      ->group(group);
}

void normalize_validation_options(CLI::App& app) {
  const auto* keep_best = app.get_option("--keep-best");
  if (keep_best->count() == 0) return;
  const auto text = keep_best->as<std::string>();
  if (text.empty() || text == "true") set_option(app, "--keep-best", "loss");
  if (text == "false") set_option(app, "--keep-best", "none");
}

}  // namespace fsdp
