#include "apps/common/validation_options.hpp"

#include "apps/common/app_main.hpp"
#include "apps/common/finetune_options.hpp"
#include "lib/base/error.hpp"

namespace fsdp {

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
      ->expected(0, 1)  // no default_str(): CLI11 would take it for the value that is not given
      ->group(group);
  app.add_option(spellings("patience"), v.patience,
                 "end the run, as one that is done, after so many validations in a row without improvement; 0: none")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("min-delta"), v.min_delta,
                 "by how much a loss must be lower, or a share of chess higher, to be an improvement")
      ->capture_default_str()
      ->group(group);
  app.add_option_function<std::string>(
         "--final",
         [&v](const std::string& text) {
           if (text != "last" && text != "best") throw UsageError("--final is '" + text + "', choose from last, best");
           v.ends_with_best = text == "best";
         },
         "which weights --save-final-full, --save-final-hf, adapters and --prompt take at the end: last or best")
      ->default_str("last")
      ->group(group);
  app.add_option(spellings("sample-prompt"), v.sample_prompts,
                 "go on from this text at each validation, into samples.jsonl; may be repeated")
      ->expected(1)
      ->allow_extra_args(false)  // else CLI11 takes a text in brackets apart at its commas
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  app.add_flag(spellings("sample-chat"), v.sample_chat,
               "each --sample-prompt is a user's message in the --chat-template, and the sample the answer")
      ->group(group);
  app.add_option(spellings("sample-tokens"), v.sample_tokens, "tokens of each sample, the most likely one each time")
      ->capture_default_str()
      ->group(group);
}

void settle_validation_options(CLI::App& app) {
  const auto* keep_best = app.get_option("--keep-best");
  if (keep_best->count() == 0) return;
  const auto text = keep_best->as<std::string>();
  if (text.empty() || text == "true") set_option(app, "--keep-best", "loss");
  if (text == "false") set_option(app, "--keep-best", "none");
}

}  // namespace fsdp
