#include <fmt/format.h>

#include <array>
#include <charconv>
#include <map>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "apps/common/app_main.hpp"
#include "apps/common/finetune_options.hpp"
#include "apps/common/shared_options.hpp"
#include "apps/common/torch_main.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

using enum AtRestart;
using enum PathKind;

constexpr NumberRange kShareBelowOne{.from = 0, .below = 1};
constexpr std::array kFinals{NamedValue<bool>{"last", false}, NamedValue<bool>{"best", true}};

void add_schedule_options(OptionTable& t, TrainOptions& o) {
  t.section("Optimizer");  // "fine-tuning" in the help: apply_fine_tuning_defaults()
  t.add("lr,learning-rate", o.schedule.peak, "peak learning rate (fine-tuning: 1e-5)", {.at_restart = saved});
  t.add_choice("lr-schedule", kLrShapes, o.schedule.shape,
               "learning rate after the warm-up: constant, linear, cosine, cosine-restarts, cosine-times-warmup (as "
               "minimal_fsdp), polynomial, inverse-sqrt or wsd (constant until --decay-steps before the end); also by "
               "the names of the Hugging Face trainer (fine-tuning: linear)",
               {.at_restart = saved});
  t.add("warmup-steps", o.schedule.warmup_steps, "optimizer steps of warm-up", {.unit = "steps", .at_restart = saved});
  t.add("warmup-ratio", o.warmup_ratio, "warm-up as a share of the schedule, if --warmup-steps is 0 (fine-tuning: 0.1)",
        {.range = {.from = 0, .to = 1}, .at_restart = saved});
  t.add("warmup-from", o.schedule.warmup_from,
        "learning rate of the first step of the warm-up, as a share of --lr (0: as transformers); default: "
        "1/--warmup-steps",
        {.default_text = "", .range = {.from = 0, .to = 1}, .at_restart = saved});
  t.add_choice("warmup-shape", kLrCurves, o.schedule.warmup_curve, "rise of the warm-up: linear, cosine or 1-sqrt",
               {.at_restart = saved});
  t.add("schedule-steps", o.schedule.total_steps,
        "length of the schedule in optimizer steps, warm-up included; 0: the run's steps",
        {.unit = "steps", .at_restart = saved});
  t.add("decay-steps", o.schedule.decay_steps,
        "optimizer steps at the end of the schedule in which the rate of wsd falls; 0: a tenth of the schedule",
        {.unit = "steps", .at_restart = saved, .depends_on = "lr-schedule"});
  t.add_choice("decay-shape", kLrCurves, o.schedule.decay_curve, "fall of wsd: linear, cosine or 1-sqrt",
               {.at_restart = saved, .depends_on = "lr-schedule"});
  t.add("schedule-value", o.schedule.value,
        "number of the schedule: waves of cosine and of wsd's (0.5), times that cosine-restarts falls (1), power of "
        "polynomial (1), or steps in which inverse-sqrt falls to 0.71 (the warm-up's, else 10000); 0: the one in "
        "brackets",
        {.at_restart = saved, .depends_on = "lr-schedule"});
  t.add("min-lr", o.min_lr, "learning rate at the end of a schedule that falls; 0: as --min-lr-ratio says",
        {.at_restart = saved, .depends_on = "min-lr-ratio"});
  t.add("min-lr-ratio", o.schedule.min_ratio, "the same, as a share of --lr",
        {.range = {.from = 0, .to = 1}, .at_restart = saved, .depends_on = "min-lr"});
}

/// "adamw, lion or sgd"
std::string optimizer_names() {
  std::string names;
  const auto& types = optimizer_types();
  for (std::size_t i = 0; i < types.size(); ++i)
    names += (i == 0 ? "" : i + 1 == types.size() ? " or " : ", ") + std::string(types[i].name);
  return names;
}

/// The library names an option of an optimizer without dashes.
OptimizerOption::TakeWord with_dashes(OptimizerOption::TakeWord take) {
  return [take = std::move(take)](const std::string& text) {
    try {
      take(text);
    } catch (const UsageError& error) {
      throw UsageError(std::string("--") + error.what());
    }
  };
}

/// Options that not every optimizer has.
void add_own_options(OptionTable& t, OptimizerOptions& o) {
  for (const auto& option : own_options(o)) {
    const auto names = (option.has_underscores ? "" : "--") + std::string(option.name);
    OptionFacts facts{.choices = option.choices, .at_restart = saved, .depends_on = "optimizer"};
    if (*option.default_text != 0) facts.default_text = option.default_text;
    const auto add = [&](const auto& value) {
      using Value = std::decay_t<decltype(value)>;
      if constexpr (std::is_same_v<Value, OptimizerOption::TakeWord>) {
        t.add_parsed(names, with_dashes(value), option.help, facts);
      } else if constexpr (std::is_same_v<Value, std::optional<at::ScalarType>*>) {
        t.add_choice(names, kStateTypeNames, *value, option.help, facts);
      } else {
        if constexpr (std::is_same_v<Value, std::int64_t*>) facts.range = {.from = 1};
        if constexpr (std::is_same_v<Value, double*> || std::is_same_v<Value, std::optional<double>*>)
          facts.range = kShareBelowOne;
        t.add(names, *value, option.help, facts);
      }
    };
    std::visit(add, option.value);
  }
}

void add_freeze_options(OptionTable& t, FreezeOptions& o) {
  t.add("freeze", o.freeze,
        "parameters that are not trained and have no gradient and no optimizer state: names or globs of parameters or "
        "modules, with commas between (model.embed_tokens,'model.layers.[0-9].*')",
        {.at_restart = saved, .depends_on = "freeze"})
      ->delimiter(',');
  t.add("train-only", o.train_only,
        "parameters that are trained ('*.mlp.*'), without those that --freeze matches; all others are frozen",
        {.at_restart = saved, .depends_on = "freeze"})
      ->delimiter(',');
}

void add_child_tuning_options(OptionTable& t, TrainOptions& o) {
  t.add_choice("child-tuning", kChildTunings, o.optimizer.child_tuning.mode,
               "train a part of the elements: f (another random part at every step), d (those of the blocks that "
               "matter most to the data, measured before the first step) or off",
               {.at_restart = saved});
  t.add("child-tuning-p,reserve-p", o.optimizer.child_tuning.p, "share of the elements that --child-tuning trains",
        {.range = {.above = 0, .to = 1}, .at_restart = saved, .depends_on = "child-tuning"});
  t.add("fisher-samples", o.fisher_samples, "sequences with which --child-tuning d measures; 0: all of --train-data",
        {.unit = "sequences", .at_restart = saved, .depends_on = "child-tuning"});
}

/// Reads KEY=VALUE,KEY=VALUE; a KEY may have commas in braces. \throws UsageError naming `option`
template <typename Value>
void parse_pattern(const std::string& text, const char* option, std::vector<std::pair<std::string, Value>>& pattern) {
  pattern.clear();
  std::istringstream words(text);
  std::string key;
  for (std::string word; std::getline(words, word, ',');) {
    const auto at = word.rfind('=');
    key += (key.empty() ? "" : ",") + word.substr(0, at);
    if (at == std::string::npos) continue;
    Value value = 0;
    const auto* end = word.data() + word.size();
    const auto read = std::from_chars(word.data() + at + 1, end, value);
    if (read.ec != std::errc() || read.ptr != end || !(value > 0))
      throw UsageError(fmt::format("{} has '{}', NAME=NUMBER with a number above 0 was expected", option, word));
    pattern.emplace_back(std::exchange(key, {}), value);
  }
  if (!key.empty()) throw UsageError(fmt::format("{} has '{}', NAME=NUMBER was expected", option, key));
}

/// Reads ID,ID or MODULE:ID,MODULE:ID. \throws UsageError
void parse_token_rows(const std::string& text, std::map<std::string, std::vector<std::int64_t>>& rows) {
  rows.clear();
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const auto at = word.rfind(':');
    std::int64_t id = 0;
    const auto* end = word.data() + word.size();
    const auto* begin = word.data() + (at == std::string::npos ? 0 : at + 1);
    auto read = std::from_chars(begin, end, id);
    if (std::string_view(begin, end) == "new") {
      read = {end, std::errc()};
      id = kNewTokens;
    }
    if (read.ec != std::errc() || read.ptr != end)
      throw UsageError(
          fmt::format("--trainable-tokens has '{}', a token's number or MODULE:NUMBER was expected", word));
    rows[at == std::string::npos ? "" : word.substr(0, at)].push_back(id);
  }
}

/// Options that choose modules and parameters one by one.
void add_lora_choices(OptionTable& t, LoraConfig& o) {
  t.add("lora-exclude", o.exclude, "matrices that get none, in the form of --lora-targets", {.at_restart = checkpoint})
      ->delimiter(',');
  t.add("lora-layers", o.layers, "numbers of the blocks that get adapters; default: all", {.at_restart = checkpoint})
      ->delimiter(',');
  t.add_parsed("lora-rank-pattern",
               [&o](const std::string& text) { parse_pattern(text, "--lora-rank-pattern", o.rank_pattern); },
               "ranks of single matrices: NAME=RANK,..., where NAME is the end of a name, or an expression for it",
               {.at_restart = checkpoint});
  t.add_parsed("lora-alpha-pattern",
               [&o](const std::string& text) { parse_pattern(text, "--lora-alpha-pattern", o.alpha_pattern); },
               "alphas of single matrices, in the form of --lora-rank-pattern", {.at_restart = checkpoint});
  t.add("lora-bias", o.lora_bias, "give each adapter a bias of its own", {.at_restart = checkpoint});
  t.add_choice("train-bias", kLoraBiases, o.bias, "also train biases of the model: of matrices with adapters, or all",
               {.at_restart = checkpoint});
  t.add("modules-to-save", o.modules_to_save,
        "modules that are trained whole and kept with the adapters, by ends of their names: lm_head,embed_tokens",
        {.at_restart = checkpoint})
      ->delimiter(',');
  t.add("ensure-weight-tying", o.ensure_weight_tying,
        "keep a tied head and embedding one weight where --modules-to-save names either", {.at_restart = checkpoint});
  t.add_parsed("trainable-tokens", [&o](const std::string& text) { parse_token_rows(text, o.token_rows); },
               "numbers of tokens whose rows of the embedding are trained, and of a tied head: 265,9; or of modules: "
               "embed_tokens:265,lm_head:9; new: those of --add-tokens",
               {.at_restart = checkpoint});
}

void add_lora_options(OptionTable& t, TrainOptions& options) {
  auto& o = options.sharding.lora;
  t.add("lora-rank", o.rank, "rank of LoRA adapters, which are trained in place of the model; 0: train the model",
        {.at_restart = checkpoint});
  t.add("lora-alpha", o.alpha, "scale of the adapters: their output is multiplied by alpha / rank",
        {.at_restart = checkpoint});
  t.add("lora-dropout", o.dropout, "probability of zeroing an input of an adapter during training",
        {.at_restart = checkpoint});
  t.add("lora-targets", o.targets,
        "matrices that get adapters: all, names or ends of names such as q_proj,v_proj, or a regular expression for "
        "whole "
        "names",
        {.default_text = "all", .at_restart = checkpoint})
      ->delimiter(',');
  t.add("rslora", o.rslora, "multiply the output of adapters by alpha / sqrt(rank) instead",
        {.at_restart = checkpoint});
  t.add("dora", o.dora, "also train the lengths of the matrices' rows (DoRA)", {.at_restart = checkpoint});
  add_lora_choices(t, o);
  t.add("adapter", options.adapter,
        "directory of an adapter in peft's format to start from, which also sets the LoRA options",
        {.path = file, .at_restart = checkpoint});
  t.add("save-final-adapter", options.save_final_adapter,
        "directory for a second copy of the final adapter in peft's format; the first one is OUT/RUN/adapter",
        {.path = folder});
}

}  // namespace

void add_optimizer_options(OptionTable& t, TrainOptions& o) {
  add_schedule_options(t, o);
  t.add_parsed("optimizer",
               [&](const std::string& text) { o.optimizer.kind = optimizer_type(text, "--optimizer").name; },
               optimizer_names() + "; also by the names of the Hugging Face trainer",
               {.default_text = "adamw", .choices = optimizer_choices(), .at_restart = saved});
  t.add("weight-decay", o.optimizer.weight_decay, "weight decay of matrices and embeddings (fine-tuning: 0.01)",
        {.at_restart = saved});
  const auto take_betas = [&](const std::vector<double>& betas) {
    if (betas.size() != 2) throw UsageError("--betas takes two numbers");
    o.optimizer.beta1 = betas[0];
    o.optimizer.beta2 = betas[1];
  };
  t.add_parsed<std::vector<double>>("betas", take_betas,
                                    "beta1 and beta2 of the AdamW variants, of the AdamW part of muon, and of lion, "
                                    "whose default is 0.9 0.99 (fine-tuning: 0.9 0.999)",
                                    {.default_text = fmt::format("[{},{}]", o.optimizer.beta1, o.optimizer.beta2),
                                     .range = kShareBelowOne,
                                     .at_restart = saved,
                                     .depends_on = "optimizer"})
      ->expected(2);
  t.add("eps", o.optimizer.eps, "epsilon of the AdamW variants", {.at_restart = saved, .depends_on = "optimizer"});
  t.add("decay-all", o.decay_all, "decay vectors (biases, norms), too, as torch.optim.AdamW does (fine-tuning: on)",
        {.at_restart = saved});
  t.add("clip-grad-norm", o.clip_grad_norm, "global gradient norm to clip to; 0: no clipping", {.at_restart = saved});
  add_own_options(t, o.optimizer);
}

void add_method_options(OptionTable& t, TrainOptions& o) {
  t.section("What is trained");
  add_lora_options(t, o);
  add_quantize_options(t, o.sharding.quantize,
                       "keep the matrices of the blocks in 4-bit form under adapters (QLoRA): nf4 or none; weights "
                       "that are stored so stay in 4-bit form");
  add_freeze_options(t, o.sharding.freeze);
  add_child_tuning_options(t, o);
}

void add_interval(OptionTable& t, const std::string& name, StepInterval& value, const std::string& help) {
  const auto take = [&value, name](const std::string& text) {
    const auto interval = parse_step_interval(text);
    if (!interval)
      throw UsageError(
          fmt::format("--{} is '{}': expected a whole number of optimizer steps, or epochs as 1epoch or 0.25epoch; 0: "
                      "never",
                      name, text));
    value = *interval;
  };
  t.add_parsed(name, take, help, {.default_text = "0", .unit = "steps", .at_restart = saved});
}

void add_validation_options(OptionTable& t, TrainOptions& o) {
  t.section("Validation");
  auto& v = o.validation;
  t.add("val-data", o.val_data,
        "validation data, in the forms of --train-data; several sets, each with its own curve, as NAME=PATH,NAME=PATH",
        {.path = validation_sets, .at_restart = saved});
  t.add(
      "val-split", o.val_split,
      "share of --train-data that is held out for validation, and never trained on: of documents those that a hash of "
      "their content chooses, of a stream its end; 0.05 is a twentieth, 0: nothing",
      {.range = kShareBelowOne, .at_restart = saved});
  add_interval(t, "eval-every", o.eval_every,
               "optimizer steps between validations, or epochs: 1epoch, 0.25epoch; 0: only at the end");
  t.add("val-chess", v.games.data,
        "games of chess that each validation scores, as fsdp-eval --chess does: next moves, legal moves, results",
        {.path = data_set, .at_restart = saved});
  t.add("val-chess-games", v.games.most, "number of games of --val-chess to score, the first ones; 0: all",
        {.at_restart = saved, .depends_on = "val-chess"});
  t.add("val-chess-positions", v.games.positions, "positions at which the model's move is checked against the rules",
        {.at_restart = saved, .depends_on = "val-chess"});
  t.add("val-tasks", v.tasks.names,
        "benchmarks that each validation asks, as fsdp-eval --tasks does: names of tasks and groups, task files or "
        "folders of these; may be repeated",
        {.path = tasks, .at_restart = saved})
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_interval(t, "val-tasks-every", v.tasks.every,
               "optimizer steps between benchmarks, or epochs; 0: at each validation");
  t.add_parsed<double>("val-limit", [&v](const double& limit) { v.tasks.limit = limit; },
                       "ask only so many of the rows of each task, or this share of them if it is below 1",
                       {.default_text = "", .at_restart = saved, .depends_on = "val-tasks"});
  t.add_parsed<std::int64_t>("val-num-fewshot", [&v](const std::int64_t& count) { v.tasks.num_fewshot = count; },
                             "examples with answers before each question; default: the task's",
                             {.default_text = "", .at_restart = saved, .depends_on = "val-tasks"});
  t.add("val-apply-chat-template", v.tasks.chat, "write questions as conversations by the --chat-template",
        {.at_restart = saved, .depends_on = "val-tasks"});
  t.add("keep-best", v.keep_best,
        "keep the best checkpoint as checkpoints/best: by the loss of the first validation set (also without a value) "
        "or of the set NAME, by chess_legal, chess_accuracy or chess_result of --val-chess, or by TASK.METRIC of "
        "--val-tasks",
        {.at_restart = saved})
      ->expected(0, 1);  // without default_text, which CLI11 would use when the value is left out
  t.add("patience", v.patience, "validations in a row without improvement after which the run ends as done; 0: never",
        {.at_restart = saved});
  t.add("min-delta", v.min_delta,
        "least change, of a loss downwards and of a share of right answers upwards, that counts as an improvement",
        {.at_restart = saved, .depends_on = "patience"});
  t.add_choice("final", kFinals, v.ends_with_best,
               "weights that --save-final-full, --save-final-hf, adapters and --prompt use at the end: last or best");
  t.add("sample-prompt", v.sample_prompts,
        "text from which each validation generates a sample, into samples.jsonl; may be repeated",
        {.at_restart = saved, .depends_on = "sample-prompt"})
      ->expected(1)
      ->allow_extra_args(false)  // otherwise CLI11 splits a text in brackets at its commas
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  t.add("sample-chat", v.sample_chat,
        "take each --sample-prompt as a user's message in the --chat-template, and sample the answer",
        {.at_restart = saved, .depends_on = "sample-prompt"});
  t.add("sample-tokens", v.sample_tokens, "tokens of each sample; the most likely token is taken each time",
        {.unit = "tokens", .at_restart = saved, .depends_on = "sample-prompt"});
}

void normalize_validation_options(OptionTable& t) {
  const auto* keep_best = t.get_option("--keep-best");
  if (keep_best->count() == 0) return;
  const auto text = keep_best->as<std::string>();
  if (text.empty() || text == "true") t.set("--keep-best", "loss");
  if (text == "false") t.set("--keep-best", "none");
}

}  // namespace fsdp
