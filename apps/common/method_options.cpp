#include "apps/common/method_options.hpp"

#include "apps/common/app_main.hpp"
#include "apps/common/quantize_options.hpp"

namespace fsdp {
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
  app.add_option_function<std::string>(
         spellings("child-tuning"), [&](const std::string& text) { o.child_tuning = parse_child_tuning(text); },
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

}  // namespace fsdp
