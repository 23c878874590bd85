// fsdp-finetune: trains minGPT from scratch or goes on from a checkpoint or a directory of weights.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/torch_main.hpp"
#include "lib/run/checkpoint_load.hpp"
#include "lib/run/finetune.hpp"
#include "lib/run/run_plan.hpp"

namespace {

using fsdp::spellings;

void add_model_options(CLI::App& app, fsdp::ModelOptions& o) {
  const auto group = "Model";
  app.add_option("--model", o.model, "mingpt (from scratch), or a directory with config.json and model.safetensors")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("num-layers"), o.num_layers, "transformer blocks")->capture_default_str()->group(group);
  app.add_option(spellings("num-heads"), o.num_heads, "attention heads")->capture_default_str()->group(group);
  app.add_option(spellings("embed-size"), o.embed_size, "width of the model")->capture_default_str()->group(group);
  app.add_option(spellings("ffn-hidden-size"), o.ffn_hidden_size, "width of the feed-forward layers; 0: 4 x embed-size")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("vocab-size"), o.vocab_size, "tokens of the vocabulary")
      ->capture_default_str()
      ->group(group);
  app.add_option("--seq-len,--seq_len,--seq-length,--seq_length", o.seq_len,
                 "longest sequence; 0: the model's, 256 for a new one")
      ->capture_default_str()
      ->group(group);
  app.add_option("--dropout", o.dropout, "probability of zeroing an activation while training")
      ->capture_default_str()
      ->group(group);
}

void add_sharding_options(CLI::App& app, fsdp::ShardingOptions& o) {
  const auto group = "Sharding, precision, memory";
  app.add_option("--sharding", o.sharding,
                 "full-shard, grad-shard, no-shard, hybrid-full-shard (= hybrid-shard) or hybrid-grad-shard")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("shard-group-size"), o.shard_group_size,
                 "ranks per shard group of a hybrid strategy; 0: the ranks of a node")
      ->capture_default_str()
      ->group(group);
  app.add_option("--wrap", o.wrap, "what is gathered together: block, none (all at once) or size:N (parameters)")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("backward-prefetch"), o.backward_prefetch,
                 "gather the next unit before (pre), after (post) or not during a unit's backward")
      ->capture_default_str()
      ->group(group);
  app.add_flag(spellings("forward-prefetch"), o.forward_prefetch, "gather the next unit before a unit's forward")
      ->group(group);
  app.add_flag("--limit-all-gathers,--limit_all_gathers,!--no-limit-all-gathers", o.limit_all_gathers,
               "at most two units gathered or on their way, beside the root (the default)")
      ->default_str("true")
      ->group(group);
  app.add_option("--precision", o.precision, "float32, bf16 or fp16: sets the three below; masters stay float32")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("param-dtype"), o.param_dtype, "of gathered parameters and activations")->group(group);
  app.add_option(spellings("reduce-dtype"), o.reduce_dtype, "of gradients on their way")->group(group);
  app.add_option(spellings("buffer-dtype"), o.buffer_dtype, "of buffers")->group(group);
  app.add_option(
         "--activation-checkpointing,--activation_checkpointing,--activation-checkpoints,--activation_checkpoints",
         o.activation_checkpointing,
         "recompute activations in the backward: all blocks (also without a value), every:N or none (the default)")
      ->expected(0, 1)
      ->group(group);
  app.add_flag(spellings("cpu-offload"), o.cpu_offload, "keep masters, gradients and optimizer state in host memory")
      ->group(group);
  app.add_flag(spellings("meta-init"), o.meta_init,
               "accepted: every start is sharded, no rank ever holds the full model")
      ->group(group);
  app.add_flag(spellings("reduce-every-micro-batch"), o.reduce_every_micro_batch,
               "accumulate sharded gradients: less memory, more communication")
      ->group(group);
  app.add_option("--collectives", o.collectives, "auto, or host-staged (MPI moves everything through host memory)")
      ->capture_default_str()
      ->group(group);
}

void add_training_options(CLI::App& app, fsdp::TrainOptions& o, double& save_minutes, std::string& time_limit) {
  auto group = "Data and steps";
  app.add_option(spellings("train-data"), o.train_data, "HDF5 file with input_ids [rows, ids]")->group(group);
  app.add_option(spellings("val-data"), o.val_data, "the same for validation")->group(group);
  app.add_option(spellings("max-epochs"), o.max_epochs, "passes over the data; negative: evaluate only")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("max-steps"), o.max_steps, "optimizer steps; wins over max-epochs")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("batch-size"), o.batch_size, "sequences per rank and micro-batch")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("total-batch-size"), o.total_batch_size,
                 "sequences per optimizer step over all ranks; sets the accumulation steps")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("gradient-accumulation-steps"), o.gradient_accumulation_steps,
                 "micro-batches per optimizer step")
      ->capture_default_str()
      ->group(group);
  app.add_option("--seed", o.seed, "decides initial weights, data order and dropout")
      ->capture_default_str()
      ->group(group);
  app.add_flag(spellings("no-shuffle"), o.no_shuffle, "read rows in file order")->group(group);
  group = "Optimizer";
  app.add_option("--lr", o.lr, "peak learning rate")->capture_default_str()->group(group);
  app.add_option(spellings("lr-schedule"), o.lr_schedule, "constant, linear or cosine, after the warm-up")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("warmup-steps"), o.warmup_steps, "steps of linear warm-up")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("schedule-steps"), o.schedule_steps, "length of the schedule; 0: the run's")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("weight-decay"), o.weight_decay, "of matrices")->capture_default_str()->group(group);
  app.add_option("--betas", o.betas, "of AdamW")->expected(2)->capture_default_str()->group(group);
  app.add_option("--eps", o.eps, "of AdamW")->capture_default_str()->group(group);
  app.add_flag(spellings("decay-all"), o.decay_all, "decay vectors too, as plain torch AdamW does")->group(group);
  app.add_option(spellings("clip-grad-norm"), o.clip_grad_norm, "global norm to clip to; 0: off")
      ->capture_default_str()
      ->group(group);
  group = "Output, checkpoints, stopping";
  app.add_option(spellings("out-dir"), o.out_dir, "where runs go")->capture_default_str()->group(group);
  app.add_option(spellings("run-name"), o.run_name, "directory of this run below out-dir; default: the model's name")
      ->group(group);
  app.add_option("--restart-checkpoint-file,--restart_checkpoint_file,--restart", o.restart_checkpoint,
                 "go on from a checkpoint: a directory, 'latest' of this run, or a .pt or safetensors file")
      ->group(group);
  app.add_option(spellings("save-every"), o.save_every, "optimizer steps between checkpoints; 0: at the end only")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("save-interval-minutes"), save_minutes,
                 "also save when this much time has passed (sites that kill without a signal)")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("keep-last"), o.keep_last, "checkpoints kept; 0: all")->capture_default_str()->group(group);
  app.add_flag(spellings("no-save"), o.no_final_save, "no checkpoint at the end")->group(group);
  app.add_option(spellings("save-final-full"), o.save_final_full,
                 "at the end write everything into one file: .pt, .pth, .bin (torch.save) or .safetensors")
      ->group(group);
  app.add_option(spellings("eval-every"), o.eval_every, "optimizer steps between validations; 0: at the end only")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("log-every"), o.log_every, "optimizer steps between log lines")
      ->capture_default_str()
      ->group(group);
  app.add_option(spellings("time-limit"), time_limit,
                 "stop in time, with a checkpoint and exit code 85: minutes or [H:]M:S; Slurm's limit is known")
      ->group(group);
  app.add_flag(spellings("dry-run"), o.dry_run, "show layout, accumulation and memory, then end")->group(group);
  app.add_option("--trace", o.runtime.trace_file,
                 "write compute, collective, optimizer and input events (Chrome trace format)")
      ->group(group);
  app.add_option("--prompt", o.prompt, "generate from this text at the end")->group(group);
  app.add_option(spellings("num-tokens"), o.num_tokens, "tokens to generate")->capture_default_str()->group(group);
}

/// Minutes, or M:S, or H:M:S.
double parse_time_limit(const std::string& text) {
  if (text.empty()) return 0;
  double total = 0;
  int parts = 0;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ':'); ++parts) {
    std::size_t used = 0;
    double value = -1;
    try {
      value = std::stod(part, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used != part.size() || value < 0 || parts > 2) {
      throw fsdp::UsageError("--time-limit is '" + text + "', give minutes or [H:]M:S");
    }
    total = total * 60 + value;
  }
  return parts == 1 ? total * 60 : total;
}

/// What a resumed run takes from its checkpoint unless told otherwise: what decides the trajectory.
constexpr std::array kSavedOptions{"lr",         "lr-schedule", "warmup-steps", "schedule-steps", "weight-decay",
                                   "betas",      "eps",         "decay-all",    "clip-grad-norm", "seed",
                                   "no-shuffle", "dropout",     "seq-len",      "max-epochs",     "max-steps",
                                   "train-data", "val-data",    "precision"};

nlohmann::json collect_saved_options(const CLI::App& app) {
  nlohmann::json saved = nlohmann::json::object();
  for (const char* name : kSavedOptions) {
    const auto* option = app.get_option(std::string("--") + name);
    if (option->count() > 0) saved[name] = fmt::format("{}", fmt::join(option->reduced_results(), " "));
  }
  return saved;
}

/// A checkpoint decides the model; an option that asks for another one is a mistake to be told, not to be passed over.
void check_model_options(const CLI::App& app, const fsdp::ModelOptions& o, const fsdp::ModelConfig& config,
                         const std::filesystem::path& checkpoint) {
  if (o.model != "mingpt") return;
  const auto check = [&](const char* name, std::int64_t asked, std::int64_t has) {
    if (app.get_option(name)->count() == 0 || asked == has) return;
    throw fsdp::UsageError(
        fmt::format("{} {} contradicts the checkpoint {}, whose model has {}: leave the option out, or "
                    "start a new run under another --run-name",
                    name, asked, checkpoint.string(), has));
  };
  check("--num-layers", o.num_layers, config.num_layers);
  check("--num-heads", o.num_heads, config.num_heads);
  check("--embed-size", o.embed_size, config.embed_size);
  check("--vocab-size", o.vocab_size, config.vocab_size);
  if (o.ffn_hidden_size != 0) check("--ffn-hidden-size", o.ffn_hidden_size, config.ffn_hidden_size);
}

/// The sizes that the user gave, for checkpoints that do not say theirs.
void note_given_sizes(const CLI::App& app, fsdp::ModelOptions& o) {
  for (const char* name : {"num-layers", "num-heads", "embed-size", "ffn-hidden-size", "vocab-size"}) {
    if (app.get_option(std::string("--") + name)->count() > 0) o.given_sizes.emplace_back(name);
  }
}

/// Options that the command line leaves open, from what the checkpoint says about its run.
void apply_saved_options(CLI::App& app, fsdp::TrainOptions& options) {
  if (options.restart_checkpoint.empty()) return;
  const auto checkpoints = fsdp::run_directory(options) / "checkpoints";
  const bool ours_only = fsdp::names_latest(options.restart_checkpoint);
  fsdp::OpenedCheckpoint opened;
  std::filesystem::path checkpoint;
  for (const auto& path : fsdp::checkpoint_candidates(options.restart_checkpoint, checkpoints)) {
    try {
      opened = fsdp::open_checkpoint(path, ours_only);
      checkpoint = path;
      break;
    } catch (const fsdp::Error&) {
      // The job itself tries all candidates and says what is wrong with them.
    }
  }
  if (checkpoint.empty() || !opened.knows_run()) return;
  const auto& manifest = opened.manifest;
  check_model_options(app, options.model, manifest.config, checkpoint);
  const auto& saved = manifest.options;
  const bool steps_given = app.get_option("--max-steps")->count() + app.get_option("--max-epochs")->count() > 0;
  for (const char* name : kSavedOptions) {
    auto* option = app.get_option(std::string("--") + name);
    if (!saved.contains(name) || option->count() > 0) continue;
    if (steps_given && (std::string(name) == "max-steps" || std::string(name) == "max-epochs")) continue;
    const auto text = saved[name].get<std::string>();
    try {
      if (option->get_expected_max() > 1) {
        std::istringstream words(text);
        for (std::string word; words >> word;) option->add_result(word);
      } else {
        option->add_result(text);  // a path may hold spaces
      }
      option->run_callback();
    } catch (const CLI::Error&) {
      throw fsdp::FormatError(
          fmt::format("{}: its run had --{} '{}', which cannot be", checkpoint.string(), name, text));
    }
  }
  const bool batch_given =
      app.get_option("--total-batch-size")->count() + app.get_option("--gradient-accumulation-steps")->count() > 0;
  if (saved.contains("total-batch-size") && !batch_given) {
    const auto text = saved["total-batch-size"].get<std::string>();
    const auto result = std::from_chars(text.data(), text.data() + text.size(), options.total_batch_size);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size() || options.total_batch_size < 1) {
      throw fsdp::FormatError(
          fmt::format("{}: its run had --total-batch-size '{}', which cannot be", checkpoint.string(), text));
    }
    options.total_batch_restored = true;
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Trains a language model with fully sharded data parallelism.\n"
      "Run it under mpiexec or srun, one rank per GPU (or per group of cores), or alone.\n"
      "Exit codes: 0 done, 1 failed, 2 usage, 4 bad input, 85 stopped early with a good checkpoint.",
      "fsdp-finetune"};
  fsdp::let_later_options_win(app);
  fsdp::TrainOptions options;
  double save_minutes = 0;
  std::string time_limit;
  std::string environment;
  bool print_config = false;
  add_model_options(app, options.model);
  add_training_options(app, options, save_minutes, time_limit);
  add_sharding_options(app, options.sharding);
  fsdp::add_runtime_options(app, options.runtime);
  app.add_option("--environment", environment, "accepted (pbs, local): the launcher is recognised by itself")
      ->group("");
  app.set_config("--config", "", "read options from a file (as --print-config writes)");
  app.add_flag("--print-config,--print_config", print_config, "write all options as a config file and end")
      ->configurable(false);
  app.set_version_flag("--version", [] { return fsdp::torch_version_text("fsdp-finetune"); });
  if (const int code = fsdp::parse(app, argc, argv); code >= 0) return code;
  auto& checkpointing = options.sharding.activation_checkpointing;
  if (auto* all = app.get_option("--activation-checkpointing");
      all->count() > 0 && (checkpointing.empty() || checkpointing == "true")) {
    all->clear();  // given without a value
    all->add_result("all");
    all->run_callback();
  }
  if (print_config) {
    if (fsdp::speaks_for_the_job()) std::cout << app.config_to_str(true, true);
    return 0;
  }
  return fsdp::run_torch_job(options.runtime,
                             [&](fsdp::ProcessGroup& world, const fsdp::Logger& log, nlohmann::json& report) {
                               options.save_interval_minutes = save_minutes;
                               options.time_limit_seconds = parse_time_limit(time_limit);
                               fsdp::require_same_options(world, app);
                               note_given_sizes(app, options.model);
                               apply_saved_options(app, options);
                               return fsdp::run_finetune(world, options, collect_saved_options(app), log, report);
                             });
}
