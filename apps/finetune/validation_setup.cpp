#include "apps/finetune/validation_setup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/finetune/samples.hpp"
#include "apps/finetune/validation_games.hpp"
#include "lib/base/error.hpp"
#include "lib/chess/evaluation/sequence.hpp"
#include "lib/engine/runtime/model_text.hpp"

namespace fsdp::detail {
namespace {

/// "loss" is the first one's, where none is called so. Perplexity and bits per byte of the same tokens are the lower,
/// the lower the loss is.
DecidingMetric deciding_metric(const TrainOptions& options) {
  const auto& metric = options.validation.keep_best;
  const auto& sets = options.val_sets;
  if (!options.validation.keeps_best()) return {};
  const auto named =
      std::find_if(sets.begin(), sets.end(), [&](const auto& set) { return !set.name.empty() && set.name == metric; });
  if (named != sets.end()) return {"loss", static_cast<std::size_t>(named - sets.begin())};
  if (metric == "loss" || metric == "perplexity" || metric == "bits_per_byte") return {};
  if (is_chess_metric(metric)) return {metric};
  std::string names;
  for (const auto& set : sets) {
    if (!set.name.empty()) names += ", " + set.name;
  }
  throw UsageError(fmt::format(
      "--keep-best {}: choose loss, perplexity, bits_per_byte{}, or of --val-chess chess_accuracy, chess_legal, "
      "chess_result",
      metric, names.empty() ? "" : fmt::format(" (of the first set), the name of a set: {}", names.substr(2))));
}

}  // namespace

DecidingMetric check_validation_options(const TrainOptions& options) {
  const auto& v = options.validation;
  const auto deciding = deciding_metric(options);
  if (v.patience < 0) throw UsageError("--patience must not be negative (0: the run does not end early)");
  if (!(v.min_delta >= 0) || !std::isfinite(v.min_delta))
    throw UsageError(fmt::format("--min-delta is {}, it must be a number >= 0", v.min_delta));
  if (v.min_delta > 0 && v.patience == 0) throw UsageError("--min-delta needs --patience");
  if (v.sample_tokens < 1)
    throw UsageError(fmt::format("--sample-tokens is {}, it must be at least 1", v.sample_tokens));
  for (const auto& set : options.val_sets) {
    if (set.name == "none" || set.name == "true" || set.name == "false")
      throw UsageError(fmt::format("--val-data: {} is no name of a set, since --keep-best {} means another thing",
                                   set.name, set.name));
    if (is_chess_metric(set.name))
      throw UsageError(
          fmt::format("--val-data: {} is no name of a set, since it is a metric of --val-chess", set.name));
  }
  if (options.eval_every < 0) throw UsageError("--eval-every must not be negative (0: at the end only)");
  for (const auto& [given, option] :
       {std::pair(v.keeps_best(), "--keep-best"), std::pair(v.patience > 0, "--patience")}) {
    if (!given || !deciding.is_loss() || !options.val_sets.empty()) continue;
    throw UsageError(fmt::format("{} needs --val-data to go by{}", option,
                                 v.games.data.empty() ? "" : ", or --keep-best chess_legal or chess_accuracy"));
  }
  if (v.patience > 0 && options.eval_every == 0)
    throw UsageError("--patience needs --eval-every: without it there is a validation at the end only");
  if (v.ends_with_best && !v.keeps_best()) throw UsageError("--final best needs --keep-best");
  if (!deciding.is_loss() && v.games.data.empty())
    throw UsageError(fmt::format("--keep-best {} needs --val-chess", deciding.metric));
  if (deciding.metric == "chess_legal" && v.games.positions == 0)
    throw UsageError("--keep-best chess_legal needs --val-chess-positions");
  return deciding;
}

void check_sample_prompts(const RunSetup& setup) {
  const auto& prompts = setup.options.validation.sample_prompts;
  if (prompts.empty() && setup.options.validation.sample_chat)
    throw UsageError("--sample-chat says what --sample-prompt is: give --sample-prompt TEXT");
  if (prompts.empty()) return;
  const auto& [name, is_sure, tokenizer] = setup.tokenizer;
  if (tokenizer == nullptr) throw UsageError("--sample-prompt: no tokenizer is known, give --tokenizer");
  check_vocabulary(*tokenizer, name, setup.config);
  for (const auto& prompt : prompts) {
    if (!setup.options.validation.sample_chat && prompt_ids(*tokenizer, prompt).empty())
      throw UsageError("--sample-prompt '" + prompt + "' is empty: at least one token is needed to go on from");
  }
}

}  // namespace fsdp::detail
