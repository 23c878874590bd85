#include <array>
#include <type_traits>
#include <variant>

#include "apps/common/app_main.hpp"
#include "apps/common/finetune_options.hpp"
#include "apps/common/shared_options.hpp"
#include "apps/common/torch_main.hpp"
#include "lib/base/error.hpp"

namespace fsdp {

CLI::Option* add_float_type(CLI::App& app, const std::string& name, std::optional<c10::ScalarType>& value,
                            const std::string& help) {
  const auto parse = [&value, name](const std::string& text) {
    value = text.empty() ? std::nullopt : std::optional(parse_value(kFloatTypeNames, text, "--" + name));
  };
  return name_choices(app.add_option_function<std::string>(spellings(name), parse, help), choices_of(kFloatTypeNames));
}

namespace {

constexpr std::array kFinals{NamedValue<bool>{"last", false}, NamedValue<bool>{"best", true}};

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

/// "adamw, lion or sgd"
std::string optimizer_names() {
  std::string names;
  const auto& types = optimizer_types();
  for (std::size_t i = 0; i < types.size(); ++i)
    names += (i == 0 ? "" : i + 1 == types.size() ? " or " : ", ") + std::string(types[i].name);
  return names;
}

/// Options that not every optimizer has.
void add_own_options(CLI::App& app, OptimizerOptions& o) {
  for (const auto& option : own_options(o)) {
    const std::string name(option.name), names = option.has_underscores ? spellings(name) : "--" + name;
    const std::string help = option.help;
    const auto add = [&](const auto& value) -> CLI::Option* {
      using Value = std::decay_t<decltype(value)>;
      if constexpr (std::is_same_v<Value, bool*>) {
        return app.add_flag(names, *value, help);
      } else if constexpr (std::is_same_v<Value, OptimizerOption::TakeWord>) {
        return name_choices(app.add_option_function<std::string>(names, value, help), option.choices);
      } else if constexpr (std::is_same_v<Value, std::optional<at::ScalarType>*>) {
        return add_float_type(app, name, *value, help);
      } else if constexpr (std::is_same_v<Value, std::optional<double>*>) {
        return app.add_option(names, *value, help);
      } else {
        return app.add_option(names, *value, help)->capture_default_str();
      }
    };
    auto* added = std::visit(add, option.value)->group("Optimizer");
    if (*option.default_text != 0) added->default_str(option.default_text);
  }
}

}  // namespace

void add_optimizer_options(CLI::App& app, TrainOptions& o) {
  add_schedule_options(app, o);
  const auto* group = "Optimizer";
  name_choices(
      app.add_option_function<std::string>(
          spellings("optimizer"), [&](const std::string& text) { o.optimizer.kind = optimizer_type(text).name; },
          optimizer_names() + "; the Hugging Face trainer's names are known"),
      optimizer_choices())
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
  add_own_options(app, o.optimizer);
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
