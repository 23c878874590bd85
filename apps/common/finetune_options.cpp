#include "apps/common/finetune_options.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <sstream>

#include "apps/common/number_checks.hpp"
#include "apps/common/shared_options.hpp"
#include "apps/common/torch_main.hpp"

namespace fsdp {
namespace {

/// Parses an option that takes one value in fsdp-finetune and several in fsdp-memprobe.
/// \param list  receives the values; null: only one value is accepted
template <typename Value, typename Parse>
std::function<void(const std::string&)> one_or_several(Value& value, std::vector<Value>* list,
                                                       const std::string& all_word, const std::vector<Value>& all,
                                                       Parse parse) {
  return [=, &value](const std::string& text) {
    if (list == nullptr) {
      value = parse(text);
      return;
    }
    *list = text == all_word ? all : std::vector<Value>();
    std::istringstream words(text == all_word ? "" : text);
    for (std::string word; std::getline(words, word, ',');) {
      if (!word.empty()) list->push_back(parse(word));
    }
    if (list->empty()) list->push_back(parse(text));
    value = list->front();
  };
}

constexpr std::array kHostStaged{NamedValue<bool>{"auto", false}, NamedValue<bool>{"host-staged", true}};

void add_model_options(CLI::App& app, ModelOptions& o) {
  const auto group = "Model";
  app.add_option("--model", o.model,
                 "mingpt (from scratch); or weights to start from: a directory with config.json and safetensors, or "
                 "ORG/NAME in the Hugging Face cache")
      ->capture_default_str()
      ->group(group);
  app.add_option("--tokenizer", o.tokenizer,
                 "of texts: gpt2, a directory, or ORG/NAME; default: the model's, gpt2 for a minGPT")
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
  app.add_option("--seq-len,--seq_len,--seq-length,--seq_length,--max-seq-length,--max_seq_length", o.seq_len,
                 "longest sequence; 0: the model's, 256 for a new one")
      ->capture_default_str()
      ->group(group);
  app.add_option("--dropout", o.dropout, "probability of zeroing an activation while training")
      ->capture_default_str()
      ->group(group);
}

/// Adds the options that decide which tensors are gathered and reduced, and when.
void add_sharding_options(CLI::App& app, ShardingOptions& o, ComparedOptions* compared) {
  const auto group = "Sharding, precision, memory";
  using enum Sharding;
  name_choices(
      app.add_option_function<std::string>(
          "--sharding",
          one_or_several(o.sharding, compared == nullptr ? nullptr : &compared->shardings, "all",
                         {full_shard, grad_shard, no_shard, hybrid_full_shard, hybrid_grad_shard},
                         [](const std::string& text) { return parse_value(kShardingNames, text, "--sharding"); }),
          "full-shard, grad-shard, no-shard, hybrid-full-shard (= hybrid-shard) or hybrid-grad-shard"),
      choices_of(kShardingNames))
      ->default_str("full-shard")
      ->group(group);
  app.add_option(spellings("shard-group-size"), o.shard_group_size,
                 "ranks per shard group of a hybrid strategy; 0: the ranks of a node")
      ->capture_default_str()
      ->group(group);
  name_choices(app.add_option_function<std::string>(
                   "--wrap", [&](const std::string& text) { o.wrap = parse_wrap(text); },
                   "what is gathered together: block, none (all at once) or size:N (parameters)"),
               kWrapChoices)
      ->default_str("block")
      ->group(group);
  app.add_flag(spellings("no-fsdp"))->description("the same as --sharding no-shard")->configurable(false)->group(group);
  app.add_flag(spellings("no-layer-wrap-policy"))
      ->description("the same as --wrap none")
      ->configurable(false)
      ->group(group);
  app.add_flag(spellings("gradient-checkpointing"))
      ->description("the same as --activation-checkpointing all")
      ->configurable(false)
      ->group(group);
  add_choice(app, spellings("backward-prefetch"), kPrefetchNames, o.backward_prefetch,
             "gather the next unit before (pre), after (post) or not during a unit's backward")
      ->default_str("pre")
      ->group(group);
  app.add_flag_function(
         "--forward-prefetch,--forward_prefetch,!--no-forward-prefetch",
         [&](std::int64_t count) { o.forward_prefetch = count > 0; },
         "gather the next unit before a unit's forward (the default on GPUs)")
      ->group(group);
  add_choice(
      app, spellings("cuda-graphs"), kCudaGraphsNames, o.cuda_graphs,
      "ask a GPU for a micro-batch's forward and backward as a whole: auto (one GPU whose kernels are shorter than "
      "their launches), on or off")
      ->default_str("auto")
      ->group(group);
  app.add_flag("--limit-all-gathers,--limit_all_gathers,!--no-limit-all-gathers", o.limit_all_gathers,
               "at most two units gathered or on their way, beside the root (the default)")
      ->default_str("true")
      ->group(group);
}

void add_compute_dtype(CLI::App& app, ShardingOptions& o, const std::string& group) {
  const auto parse = [&](const std::string& text) {
    o.compute_dtype = text.empty() || text == "auto"
                          ? std::nullopt
                          : std::optional(parse_value(kComputeTypeNames, text, "--compute-dtype"));
  };
  name_choices(
      app.add_option_function<std::string>(
          spellings("compute-dtype"), parse,
          "of products: auto (as activations), fp8 (blocks multiply in 8 bits, on Hopper, Ada and newer GPUs), "
          "or, with --quantize, of those with matrices of 4 bits"),
      choices_of(kComputeTypeNames))
      ->default_str("auto")
      ->group(group);
}

void add_precision_options(CLI::App& app, ShardingOptions& o, ComparedOptions* compared) {
  const auto group = "Sharding, precision, memory";
  name_choices(
      app.add_option_function<std::string>(
          "--precision",
          one_or_several(o.precision, compared == nullptr ? nullptr : &compared->precisions, "all",
                         {c10::ScalarType::Float, c10::ScalarType::BFloat16},
                         [](const std::string& text) { return parse_value(kFloatTypeNames, text, "--precision"); }),
          "float32, bf16 or fp16: sets the three below; masters stay float32"),
      choices_of(kFloatTypeNames))
      ->default_str("float32")
      ->group(group);
  app.add_flag(spellings("allow-emulated-bf16"), o.allow_emulated_bf16,
               "train in bf16 on a GPU that has no units for it, slowly")
      ->group(group);
  add_float_type(app, "param-dtype", o.param_dtype, "of gathered parameters and activations")->group(group);
  add_float_type(app, "master-dtype", o.master_dtype,
                 "of the weights that are updated: float32 (default); bf16 with --optimizer anyprecision --kahan")
      ->group(group);
  add_compute_dtype(app, o, group);
  add_float_type(app, "reduce-dtype", o.reduce_dtype, "of gradients on their way")->group(group);
  add_float_type(app, "buffer-dtype", o.buffer_dtype, "of buffers")->group(group);
  name_choices(
      app.add_option_function<std::string>(
          "--activation-checkpointing,--activation_checkpointing,--activation-checkpoints,--activation_checkpoints",
          one_or_several(o.checkpoint_every, compared == nullptr ? nullptr : &compared->checkpointings, "both", {0, 1},
                         parse_activation_checkpointing),
          "recompute activations in the backward: all blocks (also without a value), every:N or none (the default)"),
      kCheckpointingChoices)
      ->expected(0, 1)  // no default_str(): CLI11 would use it when the value is left out
      ->group(group);
  app.add_flag(spellings("wide-weights"), o.wide_weights,
               "on CPUs that multiply 16-bit matrices through float32: keep weights in float32 as well")
      ->group(group);
  app.add_flag(spellings("cpu-offload"), o.cpu_offload, "keep masters, gradients and optimizer state in host memory")
      ->group(group);
  name_choices(
      app.add_option_function<std::string>(
          spellings("offload-optimizer"), [&](const std::string& text) { o.offload_optimizer = parse_offload(text); },
          "where masters, gradients and optimizer state are between steps: none (with the parameters), cpu "
          "(host memory) or nvme:DIR (a directory on a disk of each node)"),
      kOffloadChoices)
      ->default_str("none")
      ->group(group);
  app.add_flag(spellings("meta-init"), o.meta_init,
               "accepted: every start is sharded, no rank ever holds the full model")
      ->group(group);
  app.add_flag(spellings("reduce-every-micro-batch"), o.reduce_every_micro_batch,
               "accumulate sharded gradients: less memory, more communication")
      ->group(group);
  add_choice(app, "--collectives", kHostStaged, o.host_staged,
             "auto, or host-staged (MPI moves everything through host memory)")
      ->default_str("auto")
      ->group(group);
}

void add_data_options(CLI::App& app, TrainOptions& o) {
  const auto* group = "Data and steps";
  app.add_option(
         spellings("train-data"), o.train_data,
         "tokens (HDF5: input_ids, or tokens and offsets), or texts: JSON Lines, Parquet, CSV, plain; a file, a "
         "directory, or a data set ORG/NAME in the Hugging Face cache")
      ->group(group);
  app.add_option(spellings("data-field"), o.data_field,
                 "key or column of the texts (default: text, or Moves) or messages")
      ->group(group);
  add_conversation_options(app, o.conversations, "data-form", group);
  app.add_flag(spellings("allow-other-tokenizer"), o.allow_other_tokenizer,
               "train on a token file that names another tokenizer than the model's")
      ->group(group);
  app.add_option(spellings("max-rows"), o.max_rows, "texts to take from the training data; 0: all")
      ->capture_default_str()
      ->group(group);
  may_be_negative(
      app.add_option(spellings("max-epochs"), o.max_epochs, "passes over the data; negative: evaluate only"))
      ->capture_default_str()
      ->check(CLI::Range(-1e9, 1e9))
      ->group(group);
  app.add_option("--max-steps,--max_steps,--max-training-steps,--max_training_steps", o.max_steps,
                 "optimizer steps; wins over max-epochs")
      ->capture_default_str()
      ->group(group);
  app.add_option("--batch-size,--batch_size,--batch-size-per-device,--batch_size_per_device", o.batch_size,
                 "sequences per rank and micro-batch")
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
  app.add_option("--seed", o.seed, "decides initial weights, data order and dropout (fine-tuning: 42)")
      ->capture_default_str()
      ->group(group);
  app.add_flag(spellings("no-shuffle"), o.no_shuffle, "read rows in file order")->group(group);
  app.add_flag("--pack,!--no-pack", o.pack,
               "several texts in each row of --seq-len tokens instead of padding; none sees another")
      ->group(group);
}

void add_output_options(CLI::App& app, TrainOptions& o, double& save_minutes, std::string& time_limit) {
  const auto* group = "Output, checkpoints, stopping";
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
  app.add_option(
         spellings("max-nonfinite-steps"), o.max_nonfinite_steps,
         "end the run after so many steps in a row whose loss or gradient norm is not finite; they update nothing")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option(spellings("takeover-after"), o.takeover_after_seconds,
                 "seconds of silence after which a job on another node that holds the run's folder is taken for dead")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_flag(spellings("no-save"), o.no_final_save, "no checkpoint at the end")->group(group);
  app.add_option(spellings("save-final-full"), o.save_final_full,
                 "at the end write everything into one file: .pt, .pth, .bin (torch.save) or .safetensors")
      ->group(group);
  app.add_option(spellings("save-final-hf"), o.save_final_hf,
                 "at the end write a directory that Hugging Face's transformers opens")
      ->group(group);
  app.add_flag(spellings("no-tensorboard"), o.no_tensorboard, "no event file for TensorBoard beside metrics.jsonl")
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

/// Parses minutes, M:S or H:M:S. \return seconds
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
    if (used != part.size() || !(value >= 0 && value <= 1e9) || parts > 2) {
      throw UsageError("--time-limit is '" + text + "', give minutes or [H:]M:S");
    }
    total = total * 60 + value;
  }
  return parts == 1 ? total * 60 : total;
}

/// Turns a flag that stands for `option value` into that option.
void apply_flag(CLI::App& app, const std::string& flag, const std::string& option, const std::string& value) {
  if (app.get_option(flag)->count() == 0) return;
  const auto* target = app.get_option(option);
  if (target->count() > 0 && target->as<std::string>() != value) {
    throw UsageError(flag + " and " + option + " " + target->as<std::string>() +
                     " contradict each other: give one of them");
  }
  set_option(app, option, value);
}

}  // namespace

void add_finetune_options(CLI::App& app, FinetuneArguments& a) {
  add_model_options(app, a.options.model);
  add_data_options(app, a.options);
  add_validation_options(app, a.options);
  add_optimizer_options(app, a.options);
  add_method_options(app, a.options);
  add_output_options(app, a.options, a.save_minutes, a.time_limit);
  auto* compared = a.compared ? &*a.compared : nullptr;
  add_sharding_options(app, a.options.sharding, compared);
  add_precision_options(app, a.options.sharding, compared);
  add_runtime_options(app, a.options.runtime);
  app.add_option("--environment", a.environment, "accepted (pbs, local): the launcher is recognised by itself")
      ->group("");
  app.set_config("--config", "", "read options from a file (as --print-config writes)");
  app.add_flag("--print-config,--print_config", a.print_config,
               "write the options that were given as a config file, defaults as comments, and end")
      ->configurable(false);
}

void set_option(CLI::App& app, const std::string& name, const std::string& value) {
  auto* option = app.get_option(name);
  option->clear();
  option->add_result(value);
  option->run_callback();
}

void normalize_spellings(CLI::App& app) {
  const auto* checkpointing = app.get_option("--activation-checkpointing");
  if (checkpointing->count() > 0) {
    const auto text = checkpointing->as<std::string>();
    if (text.empty() || text == "true") set_option(app, "--activation-checkpointing", "all");  // given without a value
    if (text == "false") set_option(app, "--activation-checkpointing", "none");                // in a config file
  }
  normalize_validation_options(app);
  apply_flag(app, "--no-fsdp", "--sharding", "no-shard");
  apply_flag(app, "--no-layer-wrap-policy", "--wrap", "none");
  apply_flag(app, "--gradient-checkpointing", "--activation-checkpointing", "all");
}

void normalize_finetune_options(CLI::App& app, FinetuneArguments& a) {
  normalize_spellings(app);
  a.options.save_interval_minutes = a.save_minutes;
  a.options.time_limit_seconds = parse_time_limit(a.time_limit);
}

}  // namespace fsdp
