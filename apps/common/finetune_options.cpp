#include "apps/common/finetune_options.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <sstream>

#include "apps/common/objective_arguments.hpp"
#include "apps/common/shared_options.hpp"
#include "apps/common/torch_main.hpp"

namespace fsdp {
namespace {

using enum AtRestart;
using enum PathKind;

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

void add_model_options(OptionTable& t, ModelOptions& o) {
  t.section("Model");
  t.add("model", o.model,
        "mingpt (trained from scratch), or weights to start from: a directory with config.json and safetensors files, "
        "or ORG/NAME[@REVISION] in the Hugging Face cache",
        {.path = model, .at_restart = checkpoint});
  t.add("tokenizer", o.tokenizer,
        "tokenizer for text data and --prompt: gpt2, a directory, or ORG/NAME in the Hugging Face cache; default: the "
        "model's (gpt2 for minGPT)",
        {.path = model, .at_restart = saved});
  t.add("add-tokens", o.add_tokens,
        "file of tokens to add to the tokenizer, and rows for them to embedding and head: a name per line, or a JSON "
        "list "
        "of names or objects as in tokenizer.json",
        {.path = file, .at_restart = checkpoint});
  t.add_choice("new-rows", kNewRows, o.new_rows, "how rows of --add-tokens start: as the mean of all rows, or zero",
               {.at_restart = checkpoint});
  t.add("pad-vocab-to", o.pad_vocabulary, "with --add-tokens: round the rows up to a multiple of this number",
        {.range = {.from = 1, .to = 65536}, .at_restart = checkpoint});
  t.add("num-layers", o.num_layers, "number of transformer blocks", {.at_restart = checkpoint});
  t.add("num-heads", o.num_heads, "number of attention heads", {.at_restart = checkpoint});
  t.add("embed-size", o.embed_size, "width of the model; --num-heads must divide it", {.at_restart = checkpoint});
  t.add("ffn-hidden-size", o.ffn_hidden_size, "width of the feed-forward layers; 0: 4 x --embed-size",
        {.at_restart = checkpoint});
  t.add("vocab-size", o.vocab_size, "number of tokens in the vocabulary", {.at_restart = checkpoint});
  t.add("seq-len,seq-length,max-seq-length", o.seq_len,
        "longest sequence in tokens; 0: the model's own, 256 for a new model", {.unit = "tokens", .at_restart = saved});
  t.add("dropout", o.dropout, "probability of zeroing an activation during training (minGPT and GPT-2)",
        {.at_restart = saved});
}

/// Adds the options that decide which tensors are gathered and reduced, and when.
void add_sharding_options(OptionTable& t, ShardingOptions& o, ComparedOptions* compared) {
  t.section("Sharding, precision, memory");
  using enum Sharding;
  t.add_parsed(
      "sharding",
      one_or_several(o.sharding, compared == nullptr ? nullptr : &compared->shardings, "all",
                     {full_shard, grad_shard, optimizer_shard, no_shard, hybrid_full_shard, hybrid_grad_shard},
                     [](const std::string& text) { return parse_value(kShardingNames, text, "--sharding"); }),
      "sharding strategy: full-shard, grad-shard, optimizer-shard, no-shard, hybrid-full-shard (also hybrid-shard) or "
      "hybrid-grad-shard",
      {.default_text = "full-shard",
       .choices = choices_of(kShardingNames),
       .suggestions = compared == nullptr ? "" : "all"});
  t.add("shard-group-size", o.shard_group_size,
        "ranks per shard group of a hybrid strategy; must divide the number of ranks; 0: the ranks of a node");
  t.add_parsed("wrap", [&](const std::string& text) { o.wrap = parse_wrap(text, "--wrap"); },
               "parameters that are gathered together: block (each transformer block by itself), none (the whole "
               "model) or size:N "
               "(blocks with at least N parameters together)",
               {.default_text = "block", .choices = kWrapChoices});
  t.add("no-fsdp", "the same as --sharding no-shard")->configurable(false);
  t.add("no-layer-wrap-policy", "the same as --wrap none")->configurable(false);
  t.add("gradient-checkpointing", "the same as --activation-checkpointing all")->configurable(false);
  t.add_choice("backward-prefetch", kPrefetchNames, o.backward_prefetch,
               "when the backward gathers the next unit: pre (before the current unit's backward), post (after it) or "
               "none (when it is needed)");
  t.add("forward-prefetch,!--no-forward-prefetch", o.forward_prefetch,
        "gather the next unit before the current unit's forward; default: on GPUs");
  t.add_choice("cuda-graphs", kCudaGraphsNames, o.cuda_graphs,
               "launch forward and backward of a micro-batch as one CUDA graph: auto (one GPU whose kernels are "
               "shorter than their launches), on or off");
  t.add("limit-all-gathers,!--no-limit-all-gathers", o.limit_all_gathers,
        "gather at most two units at once, in addition to the root unit", {.default_text = "true"});
}

void add_compute_dtype(OptionTable& t, ShardingOptions& o) {
  const auto parse = [&](const std::string& text) {
    o.compute_dtype = text.empty() || text == "auto"
                          ? std::nullopt
                          : std::optional(parse_value(kComputeTypeNames, text, "--compute-dtype"));
  };
  t.add_parsed("compute-dtype", parse,
               "type of matrix multiplications: auto (the type of the activations), fp8 (8-bit in the blocks, on "
               "Hopper, Ada and newer GPUs), or with --quantize the type of multiplications with 4-bit matrices",
               {.default_text = "auto", .choices = choices_of(kComputeTypeNames), .at_restart = saved});
}

c10::ScalarType parse_precision(const std::string& text) {
  if (text == "fp8" || text == "float8")
    throw UsageError("--precision " + text +
                     ": products in 8 bits are --precision bf16 --compute-dtype fp8; all else stays in bf16");
  return parse_value(kFloatTypeNames, text, "--precision");
}

void add_precision_options(OptionTable& t, ShardingOptions& o, ComparedOptions* compared) {
  t.add_parsed(
      "precision",
      one_or_several(o.precision, compared == nullptr ? nullptr : &compared->precisions, "all",
                     {c10::ScalarType::Float, c10::ScalarType::BFloat16}, parse_precision),
      "mixed precision: float32, bf16 or fp16; sets --param-dtype, --reduce-dtype and --buffer-dtype; master weights "
      "stay float32",
      {.default_text = "float32",
       .choices = choices_of(kFloatTypeNames),
       .suggestions = compared == nullptr ? "" : "all",
       .at_restart = saved});
  t.add("allow-emulated-bf16", o.allow_emulated_bf16, "train in bf16 on a GPU without bf16 units, which is slow");
  t.add(
      "tf32", o.tf32,
      "multiply float32 in TF32 (10 bits of mantissa, faster) on GPUs from Ampere on; without it, TF32 is off whatever "
      "the environment says");
  t.add_choice("param-dtype", kFloatTypeNames, o.param_dtype,
               "type of gathered parameters and of activations; default: from --precision");
  t.add_choice("master-dtype", kStateTypeNames, o.master_dtype,
               "type of the master weights, which the optimizer updates: float32, or bf16 (with --optimizer "
               "anyprecision --kahan --precision bf16); default: float32",
               {.at_restart = saved, .depends_on = "optimizer"});
  add_compute_dtype(t, o);
  t.add_choice("reduce-dtype", kFloatTypeNames, o.reduce_dtype,
               "type of gradients during reductions; default: from --precision");
  t.add_choice("buffer-dtype", kFloatTypeNames, o.buffer_dtype, "type of buffers; default: from --precision");
  t.add_parsed(
       "activation-checkpointing,activation-checkpoints",
       one_or_several(
           o.checkpoint_every, compared == nullptr ? nullptr : &compared->checkpointings, "both", {0, 1},
           [](const std::string& text) { return parse_activation_checkpointing(text, "--activation-checkpointing"); }),
       "recompute activations in the backward: all (every block; also without a value), every:N (every N-th "
       "block) or none; default: none",
       {.choices = kCheckpointingChoices, .suggestions = compared == nullptr ? "" : "both"})
      ->expected(0, 1);  // without default_text, which CLI11 would use when the value is left out
  t.add("offload-activations", o.offload_activations,
        "on GPUs: keep the inputs of the blocks that --activation-checkpointing recomputes in host memory until the "
        "backward");
  t.add("wide-weights", o.wide_weights,
        "on CPUs that multiply 16-bit matrices through float32: also keep the weights in float32, once per node");
  t.add("cpu-offload", o.cpu_offload, "keep master weights, gradient shards and optimizer state in host memory");
  t.add_parsed("offload-optimizer",
               [&](const std::string& text) { o.offload_optimizer = parse_offload(text, "--offload-optimizer"); },
               "place of master weights, gradient shards and optimizer state between steps: none (with the "
               "parameters), cpu (host memory) or nvme:DIR (a directory on a disk of each node)",
               {.default_text = "none", .choices = kOffloadChoices});
  t.add("offload-parameters", o.offload_parameters,
        "on GPUs with --offload-optimizer nvme:DIR: keep the rows of trained parameters on that disk, too, between "
        "all-gathers");
  t.add("meta-init", o.meta_init,
        "accepted without effect: every start is sharded, and no rank ever holds the full model");
  t.add("reduce-every-micro-batch", o.reduce_every_micro_batch,
        "with gradient accumulation: reduce gradients after each micro-batch, for less memory and more communication");
  t.add_choice("collectives", kHostStaged, o.host_staged,
               "transport of collectives: auto (shared memory or MPI on CPUs, NCCL on GPUs) or host-staged (MPI "
               "through host memory)");
}

constexpr double kMostRows = 1e9;  // of a step: products with ranks and micro-batches stay far from overflow

void add_data_options(OptionTable& t, TrainOptions& o, bool compares) {
  t.section("Data and steps");
  t.add(
       "train-data", o.train_data,
       "training data: a token file, or text data as JSON Lines, Parquet, CSV or plain text: a file, a directory, or a "
       "data set ORG/NAME in the Hugging Face cache; several are mixed: PATH:WEIGHT PATH:WEIGHT, or a JSON file with "
       "sources (docs/data-at-scale.md)",
       {.path = data_sources, .at_restart = saved})
      ->type_name("DATA...")
      ->multi_option_policy(CLI::MultiOptionPolicy::Join);  // of lists in config files
  t.add_choice("mix-end", kMixEnds, o.mix_end,
               "of several sources, what one does when all of its samples were given: repeat (it begins again, in "
               "another order), stop (the run ends) or drop (its share goes to the others until all have ended)",
               {.at_restart = saved});
  t.add("mix-temperature", o.mix_temperature,
        "of several sources without weights: shares are sizes to the power of 1 over this number; 1: as large as they "
        "are, more: closer to each other",
        {.range = {.above = 0}, .at_restart = saved, .depends_on = "train-data"});
  t.add("data-field", o.data_field,
        "key or column that holds the texts or messages; default: text, or Moves in Parquet files without text",
        {.at_restart = saved});
  add_conversation_options(t, o.conversations, "data-form");
  add_layout_options(t, o.stream, o.documents);
  add_token_dtype(t, o.token_type);
  t.add("allow-other-tokenizer", o.allow_other_tokenizer,
        "train on a token file although it names a different kind or size of tokenizer, or a larger vocabulary, than "
        "the model's",
        {.at_restart = saved, .depends_on = "train-data"});
  t.add("max-rows", o.max_rows, "texts, or rows of a token file or of a stream, to read from --train-data; 0: all",
        {.at_restart = saved});
  t.add("max-epochs", o.max_epochs, "passes over the data, which may be a fraction; negative: only evaluate",
        {.range = {.from = -1e9, .to = 1e9},
         .any_sign = true,
         .unit = "epochs",
         .at_restart = saved,
         .depends_on = "max-steps"});
  t.add("max-steps,max-training-steps", o.max_steps,
        "optimizer steps of the whole run, those before a restart included; 0: as --max-epochs says",
        {.unit = "steps", .at_restart = saved, .depends_on = "max-steps"});
  t.add("batch-size,batch-size-per-device", o.batch_size, "sequences per rank and micro-batch",
        {.range = {.from = 1, .to = kMostRows},
         .instead_of_list = compares ? "--search finds the largest that fits, and how fast each is" : "",
         .unit = "sequences"});
  t.add("total-batch-size", o.total_batch_size,
        "sequences per optimizer step over all ranks, which sets the gradient accumulation; 0: as the other two say",
        {.range = {.to = kMostRows}, .unit = "sequences", .at_restart = checkpoint});
  t.add("gradient-accumulation-steps", o.gradient_accumulation_steps,
        "micro-batches per optimizer step; 0: one, or as many as --total-batch-size needs",
        {.range = {.to = 1e6}, .at_restart = checkpoint});
  t.add("seed", o.seed, "seed of initial weights, data order and dropout (fine-tuning: 42)", {.at_restart = saved});
  t.add("no-shuffle", o.no_shuffle, "read rows in the order of the file", {.at_restart = saved});
  t.add("pack,!--no-pack", o.pack,
        "pack several texts into each row of --seq-len tokens instead of padding; no text sees another",
        {.at_restart = saved});
}

void add_output_options(OptionTable& t, TrainOptions& o, std::string& time_limit, std::string& on_event) {
  t.section("Output, checkpoints, stopping");
  t.add("out-dir", o.out_dir, "directory of all runs, which all nodes share",
        {.path = folder, .at_restart = checkpoint});
  t.add("run-name", o.run_name, "name of this run, which is its directory below --out-dir; default: the model's name",
        {.at_restart = checkpoint});
  t.add("restart-checkpoint-file,restart", o.restart_checkpoint,
        "checkpoint to resume from: latest or best of this run, a run's directory, a checkpoint's directory, or a .pt "
        "or safetensors file",
        {.path = file, .at_restart = checkpoint});
  t.add("restart-epoch", o.restart_epoch,
        "finished epochs after which the run of a checkpoint of another program goes on; default: as the checkpoint "
        "says",
        {.default_text = "", .range = {.from = 0, .to = 1e9}, .unit = "epochs", .at_restart = checkpoint});
  add_interval(t, "save-every", o.save_every,
               "optimizer steps between checkpoints, or epochs: 1epoch, 0.5epoch; 0: not by steps");
  t.add("save-interval-minutes", o.save_interval_minutes,
        "also save when this many minutes have passed, for jobs that are killed without a signal; 0: never. The "
        "default does not hold with --save-every or --no-save; of its checkpoints the newest is kept",
        {.unit = "minutes", .at_restart = saved});
  t.add("keep-last", o.keep_last, "number of newest checkpoints to keep; 0: all", {.at_restart = saved});
  t.add("keep-optimizer", o.keep_optimizer,
        "number of newest checkpoints that keep the optimizer's state; older ones keep their weights alone; 0: all",
        {.range = {.from = 0}, .at_restart = saved});
  t.add("max-nonfinite-steps", o.max_nonfinite_steps,
        "steps in a row with a loss or gradient norm that is not finite, after which the run fails; such steps update "
        "nothing",
        {.range = {.above = 0}, .unit = "steps"});
  t.add("takeover-after", o.takeover_after_seconds,
        "seconds without a sign of life after which another node's job that holds the run's folder counts as dead",
        {.range = {.above = 0}, .unit = "seconds"});
  t.add("no-save", o.no_final_save, "write no checkpoint at the end");
  t.add("save-final-full", o.save_final_full,
        "at the end write the whole checkpoint into one file: .pt, .pth or .bin (torch.save), or .safetensors",
        {.path = file});
  t.add(
      "save-final-hf", o.save_final_hf,
      "at the end write a model directory that Hugging Face's transformers opens, with adapters merged into the model",
      {.path = folder});
  t.add("overwrite", o.overwrite,
        "let --save-final-full, --save-final-hf and --save-final-adapter replace what another run wrote there");
  t.add("no-tensorboard", o.no_tensorboard, "write no event file for TensorBoard");
  t.add("log-every", o.log_every, "optimizer steps between log lines", {.unit = "steps"});
  t.add("straggler-every", o.straggler_every_seconds,
        "seconds between comparisons of the ranks' pace, which name a rank that the others wait for; 0: none",
        {.range = {.from = 0}, .unit = "seconds"});
  t.add("verify-every", o.verify_every,
        "steps after which all ranks compare parameters, states and decisions, and compute a micro-batch of a "
        "neighbour, and the run fails where a rank's numbers differ; 0: never",
        {.range = {.from = 0}, .unit = "steps"});
  t.add("sniff-every", o.sniff_every,
        "steps after which, and before the first one, all ranks multiply and transfer known numbers in the job's own "
        "shapes, and the run fails where a bit is wrong; 0: never",
        {.range = {.from = 0}, .unit = "steps"});
  t.add("exclude-file", o.exclude_file,
        "file to which the job adds nodes that slowed it down, or on which a rank was stuck or wrong, one per line; "
        "the job "
        "scripts leave them out when they requeue the job",
        {.path = file});
  t.add(
      "time-limit", time_limit,
      "time after which the run stops with a checkpoint and exit code 85: minutes or [H:]M:S; default: Slurm's limit");
  t.add("on-event", on_event,
        "command for /bin/sh that runs when the job starts, is done, stops early or fails, with FSDP_EVENT and other "
        "variables that tell about it");
  t.add(
      "dry-run", o.dry_run,
      "print layout, gradient accumulation, predicted memory, speed and length, then end; exit code 3 if the job does "
      "not fit",
      {.at_restart = checkpoint});
  t.add("samples", o.samples_file,
        "with --dry-run: file for the first samples of the run, one JSON object per line: position, source, row and "
        "epoch",
        {.path = file});
  t.add("num-samples", o.num_samples, "number of samples in --samples", {.range = {.from = 1}, .unit = "samples"});
  t.add("trace", o.runtime.trace_file,
        "file for a trace of compute, collectives, optimizer and input (Chrome trace format)", {.path = file});
  t.add("prompt", o.prompt, "text from which to generate at the end");
  t.add("num-tokens", o.num_tokens, "tokens to generate from --prompt", {.unit = "tokens"});
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
void apply_flag(OptionTable& t, const std::string& flag, const std::string& option, const std::string& value) {
  if (t.get_option(flag)->count() == 0 || !t.get_option(flag)->as<bool>()) return;
  const auto* target = t.get_option(option);
  if (target->count() > 0 && target->as<std::string>() != value) {
    throw UsageError(flag + " and " + option + " " + target->as<std::string>() +
                     " contradict each other: give one of them");
  }
  t.set(option, value);
}

}  // namespace

void add_finetune_options(OptionTable& t, FinetuneArguments& a) {
  t.rewrite_with(replace_other_names);
  add_model_options(t, a.options.model);
  add_data_options(t, a.options, a.compared.has_value());
  add_objective_options(t, a.options);
  add_validation_options(t, a.options);
  add_optimizer_options(t, a.options);
  add_method_options(t, a.options);
  add_output_options(t, a.options, a.time_limit, a.on_event);
  auto* compared = a.compared ? &*a.compared : nullptr;
  add_sharding_options(t, a.options.sharding, compared);
  add_precision_options(t, a.options.sharding, compared);
  add_runtime_options(t, a.options.runtime);
  t.section("Options");
  t.add("environment", a.environment, "accepted without effect (pbs, local): the program recognises the launcher")
      ->group("");
  t.add_config("file to read options from, as --print-config writes it, or axolotl's YAML");
  t.config_formatter(std::make_shared<AxolotlFile>(t, a.notes));
  t.add("print-config", a.print_config,
        "print the given options as a config file, with all defaults as comments, and end")
      ->configurable(false);
}

void normalize_spellings(OptionTable& t) {
  const auto* checkpointing = t.get_option("--activation-checkpointing");
  if (checkpointing->count() > 0) {
    const auto text = checkpointing->as<std::string>();
    if (text.empty() || text == "true") t.set("--activation-checkpointing", "all");  // given without a value
    if (text == "false") t.set("--activation-checkpointing", "none");                // in a config file
  }
  normalize_validation_options(t);
  apply_flag(t, "--no-fsdp", "--sharding", "no-shard");
  apply_flag(t, "--no-layer-wrap-policy", "--wrap", "none");
  apply_flag(t, "--gradient-checkpointing", "--activation-checkpointing", "all");
}

void normalize_finetune_options(OptionTable& t, FinetuneArguments& a) {
  normalize_spellings(t);
  a.options.time_limit_seconds = parse_time_limit(a.time_limit);
}

}  // namespace fsdp
