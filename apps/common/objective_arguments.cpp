#include "apps/common/objective_arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/training/objectives/pair_losses.hpp"

namespace fsdp {
namespace {

/// Reads "sigmoid" or "sigmoid:0.8,hinge:0.2".
std::vector<WeightedDpoLoss> parse_dpo_losses(const std::string& text) {
  std::vector<WeightedDpoLoss> losses;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const auto colon = word.find(':');
    const auto name = word.substr(0, colon);
    WeightedDpoLoss loss{find_dpo_loss(name)};
    if (loss.loss == nullptr) throw UsageError("--dpo-loss is '" + name + "', choose from " + choices_of(dpo_losses()));
    if (colon != std::string::npos) {
      const auto* last = word.data() + word.size();
      const auto read = std::from_chars(word.data() + colon + 1, last, loss.weight);
      if (read.ec != std::errc() || read.ptr != last || !(loss.weight > 0 && loss.weight < 1e9))
        throw UsageError("--dpo-loss " + text + ": '" + word.substr(colon + 1) + "' is no weight, a number above 0");
    }
    losses.push_back(loss);
  }
  if (losses.empty()) throw UsageError("--dpo-loss names no loss");
  return losses;
}

}  // namespace

void add_objective_options(OptionTable& t, TrainOptions& options) {
  using enum AtRestart;
  auto& o = options.objective;
  t.section("Preferences");
  t.add_choice(
      "objective", kObjectiveNames, o.kind,
      "what is minimized: next-token (the loss of each token), or of preferences (chosen and rejected answers) "
      "dpo, which compares with a reference, orpo, simpo or cpo, which need none, or kto of judged answers, with a "
      "reference (docs/preferences.md)",
      {.at_restart = saved});
  t.add_parsed(
      "dpo-loss", [&o](const std::string& text) { o.dpo_losses = parse_dpo_losses(text); },
      "loss of dpo: " + choices_of(dpo_losses()) + "; a weighted sum as sigmoid:0.8,hinge:0.2",
      {.default_text = "sigmoid", .choices = choices_of(dpo_losses()), .at_restart = saved, .depends_on = "objective"});
  t.add("dpo-beta", o.beta,
        "factor of the log-probabilities of preferences: how closely dpo stays to the reference; of orpo the weight of "
        "the odds ratio",
        {.range = {.above = 0}, .at_restart = saved, .depends_on = "objective"});
  t.add("label-smoothing", o.label_smoothing,
        "share of preferences that are taken for the wrong way round by the losses robust and exo_pair (which takes "
        "0.001 for 0)",
        {.range = {.from = 0, .below = 0.5}, .at_restart = saved, .depends_on = "objective"});
  t.add("sft-weight", o.sft_weight,
        "weight of the mean loss of the chosen answers' tokens beside that of the preferences; default: 1 for orpo and "
        "cpo, otherwise 0",
        {.default_text = "", .range = {.from = 0}, .any_sign = true, .at_restart = saved, .depends_on = "objective"});
  t.add("simpo-gamma", o.simpo_gamma, "margin between the rewards of simpo",
        {.range = {.from = 0}, .at_restart = saved, .depends_on = "objective"});
  t.add_choice("kto-loss", kKtoLossNames, o.kto_loss, "loss of kto: " + choices_of(kKtoLossNames),
               {.at_restart = saved, .depends_on = "objective"});
  t.add("desirable-weight", o.desirable_weight, "weight of the losses of answers that are wanted, of kto",
        {.range = {.from = 0}, .at_restart = saved, .depends_on = "objective"});
  t.add("undesirable-weight", o.undesirable_weight, "weight of the losses of answers that are not wanted, of kto",
        {.range = {.from = 0}, .at_restart = saved, .depends_on = "objective"});
  t.add("reference", o.reference,
        "model with which dpo and kto compare: a directory, a checkpoint, ORG/NAME in the Hugging Face cache, or a "
        "file of "
        "fsdp-eval --log-probs; default: the weights that the run begins with, without adapters",
        {.path = PathKind::folder, .at_restart = saved, .depends_on = "objective"});
  t.section("Scores of texts");
  t.add_choice(
      "head", kHeadNames, o.head,
      "what the model makes of a text: next-token, classify (one of several labels, from samples with 'label') "
      "or reward (a number, from preferences); the last two replace the model's head (docs/heads.md)",
      {.at_restart = saved});
  t.add(
       "labels", options.conversations.labels,
       "names of the labels of --head classify, in the order of their numbers; default: those of the model, else those "
       "of --train-data",
       {.at_restart = checkpoint})
      ->take_all();
  t.add("center-rewards-coefficient", o.center_rewards,
        "weight of the square of the sum of both rewards of a pair in --head reward, which keeps rewards around 0",
        {.range = {.from = 0}, .at_restart = saved, .depends_on = "head"});
}

void check_objective_options(TrainOptions& options) {
  const auto& o = options.objective;
  const ObjectiveOptions usual;
  const auto& validation = options.validation;
  const bool writes_text = !options.prompt.empty() || !validation.sample_prompts.empty() ||
                           !validation.games.data.empty() || !validation.tasks.names.empty();
  const auto is = [&](ObjectiveKind kind) { return o.kind == kind; };
  const bool takes_smoothing = is(ObjectiveKind::dpo) && std::ranges::any_of(o.dpo_losses, [](const auto& part) {
                                 return part.loss->takes_smoothing;
                               });
  const bool is_usual_loss =
      o.dpo_losses.empty() || (o.dpo_losses.size() == 1 && o.dpo_losses.front().loss == &dpo_losses().front() &&
                               o.dpo_losses.front().weight == 1);
  const auto& chat = options.conversations;
  const bool learns_answers = o.compares_answers() || o.judges_answers();
  const bool is_classifier = o.head == HeadKind::classify;
  const auto form = is_classifier ? DataForm::label : DataForm::preference;
  const bool reads_samples = o.has_preferences() || is_classifier;
  const bool has_form = chat.form == DataForm::automatic || chat.form == form;
  for (const auto& [given, fits, message] :
       {std::tuple(!is_usual_loss, is(ObjectiveKind::dpo), "--dpo-loss belongs to --objective dpo"),
        std::tuple(o.beta != usual.beta, learns_answers,
                   "--dpo-beta belongs to --objective dpo, orpo, simpo, cpo or kto"),
        std::tuple(o.kto_loss != usual.kto_loss || o.desirable_weight != usual.desirable_weight ||
                       o.undesirable_weight != usual.undesirable_weight,
                   o.judges_answers(),
                   "--kto-loss, --desirable-weight and --undesirable-weight belong to --objective kto"),
        std::tuple(o.judges_answers(), !options.pack,
                   "--objective kto reads one answer from each row: leave --pack out"),
        std::tuple(o.judges_answers(),
                   chat.form == DataForm::automatic || chat.form == DataForm::prompt_completion ||
                       chat.form == DataForm::preference,
                   "--objective kto reads prompt-completion with 'label', or preferences, and --data-form asks for "
                   "something else: leave it out"),
        std::tuple(o.sft_weight >= 0, o.compares_answers(),
                   "--sft-weight belongs to --objective dpo, orpo, simpo or cpo"),
        std::tuple(o.label_smoothing != 0, takes_smoothing,
                   "--label-smoothing belongs to --dpo-loss robust or exo_pair"),
        std::tuple(o.simpo_gamma != usual.simpo_gamma, is(ObjectiveKind::simpo),
                   "--simpo-gamma belongs to --objective simpo"),
        std::tuple(!o.reference.empty(), o.has_reference(), "--reference belongs to --objective dpo or kto"),
        std::tuple(o.has_scores(), !learns_answers, "--objective compares answers, and --head has no tokens to give"),
        std::tuple(!chat.labels.empty(), is_classifier, "--labels belongs to --head classify"),
        std::tuple(o.center_rewards != 0, o.head == HeadKind::reward,
                   "--center-rewards-coefficient belongs to --head reward"),
        std::tuple(
            reads_samples, has_form,
            "--objective and --head say what samples are, and --data-form asks for something else: leave it out"),
        std::tuple(learns_answers, chat.train_on == TrainOn::answers,
                   "--train-on all: preferences and judged answers are learned by their answers"),
        std::tuple(
            chat.max_prompt_length > 0 || chat.truncation != Truncation::keep_start,
            o.has_preferences() || o.judges_answers(),
            "--max-prompt-length and --truncation are for preferences: they go with --objective dpo, orpo, simpo, cpo "
            "or kto"),
        std::tuple(
            o.has_scores(), !writes_text,
            "--val-chess, --val-tasks, --prompt and --sample-prompt need a model that writes text: --head has none")}) {
    if (given && !fits) throw UsageError(message);
  }
  options.conversations.head = o.head;
  options.conversations.judged = o.judges_answers();
  if (!reads_samples && !o.judges_answers()) return;
  if (options.stream) throw UsageError("--stream joins texts, and each sample has an answer of its own: leave it out");
  if (options.optimizer.child_tuning.mode == ChildTuning::task_driven)
    throw UsageError("--child-tuning d measures the loss of tokens, and --objective has another one: use f");
  if (reads_samples) options.conversations.form = form;
}

}  // namespace fsdp
