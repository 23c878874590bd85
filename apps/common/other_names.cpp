// Names that users of other trainers type (the Hugging Face Trainer and TRL, torchtitan, axolotl, minGPT, nanoGPT,
// Megatron-LM) on the command line, and in files of axolotl's (axolotl_file.hpp), and what they are here. The table in
// docs/tutorials.md lists them.
#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <sstream>
#include <string_view>

#include "apps/common/finetune_options.hpp"

namespace fsdp {
namespace {

/// An option of this program, and other names for the same, with blanks between.
struct SameOption {
  std::string_view ours, others;
};
constexpr std::array kSameOptions{
    SameOption{"ranks", "gpus num-gpus n-gpus ngpus num-devices"},
    SameOption{"model", "model-name-or-path base-model model-name model-id"},
    SameOption{"tokenizer", "tokenizer-name tokenizer-name-or-path tokenizer-config"},
    SameOption{"num-layers", "n-layer num-hidden-layers model.n-layer"},
    SameOption{"num-heads", "n-head num-attention-heads model.n-head"},
    SameOption{"embed-size", "n-embd hidden-size model.n-embd"},
    SameOption{"seq-len",
               "block-size max-seq-len max-length model-max-length sequence-len sequence-length "
               "context-length training.seq-len model.block-size"},
    SameOption{"train-data", "train-file dataset dataset-name dataset-path training.dataset-path"},
    SameOption{"val-data", "validation-file eval-file"},
    SameOption{"val-split", "val-set-size val-size"},
    SameOption{"data-field", "dataset-text-field text-column"},
    SameOption{"max-rows", "max-train-samples"},
    SameOption{"max-epochs", "epochs num-epochs num-train-epochs"},
    SameOption{"max-steps", "steps max-iters train-iters max-train-steps training.steps trainer.max-iters"},
    SameOption{"batch-size",
               "per-device-train-batch-size micro-batch-size training.local-batch-size "
               "training.batch-size trainer.batch-size"},
    SameOption{"total-batch-size", "global-batch-size training.global-batch-size"},
    SameOption{"pack", "packing sample-packing"},
    SameOption{"eval-every", "eval-steps eval-interval validation.freq"},
    SameOption{"patience", "early-stopping-patience"},
    SameOption{"lr", "optimizer.lr trainer.learning-rate"},
    SameOption{"lr-schedule", "lr-scheduler-type lr-scheduler lr-decay-style"},
    SameOption{"min-lr-ratio", "min-lr-rate cosine-min-lr-ratio lr-scheduler.min-lr-factor"},
    SameOption{"warmup-steps", "num-warmup-steps warmup-iters lr-warmup-iters lr-scheduler.warmup-steps"},
    SameOption{"schedule-steps", "lr-decay-iters lr-scheduler.total-steps"},
    SameOption{"decay-steps", "num-decay-steps lr-wsd-decay-iters"},
    SameOption{"decay-shape", "decay-type lr-wsd-decay-style lr-scheduler.decay-type"},
    SameOption{"warmup-shape", "warmup-type"},
    SameOption{"optimizer", "optim optimizer.name"},
    SameOption{"eps", "adam-epsilon adam-eps optimizer.eps"},
    SameOption{"weight-decay", "optimizer.weight-decay trainer.weight-decay"},
    SameOption{"clip-grad-norm",
               "max-grad-norm grad-clip clip-grad gradient-clipping grad-norm-clip training.max-norm "
               "trainer.grad-norm-clip"},
    SameOption{"lora-rank", "lora-r"},
    SameOption{"lora-targets", "lora-target-modules"},
    SameOption{"modules-to-save", "lora-modules-to-save"},
    SameOption{"lora-layers", "peft-layers-to-transform layers-to-transform"},
    SameOption{"ensure-weight-tying", "peft-ensure-weight-tying"},
    SameOption{"adapter", "lora-model-dir"},
    SameOption{"rslora", "use-rslora peft-use-rslora"},
    SameOption{"dora", "use-dora peft-use-dora"},
    SameOption{"double-quant", "use-double-quant bnb-4bit-use-double-quant"},
    SameOption{"compute-dtype", "bnb-4bit-compute-dtype"},
    SameOption{"restart-checkpoint-file", "resume resume-from-checkpoint resume-from"},
    SameOption{"save-every", "save-steps save-interval checkpoint-interval checkpoint.interval"},
    SameOption{"keep-last", "save-total-limit checkpoint.keep-latest-k"},
    SameOption{"log-every", "logging-steps log-interval log-freq metrics.log-freq"},
    SameOption{"precision", "mixed-precision dtype"},
    SameOption{"param-dtype", "training.mixed-precision-param"},
    SameOption{"reduce-dtype", "training.mixed-precision-reduce"},
    SameOption{"offload-activations", "activation-offloading"},
    SameOption{"cpu-offload", "offload-params fsdp-offload-params training.enable-cpu-offload"},
    SameOption{"num-tokens", "max-new-tokens"},
    SameOption{"seed", "training.seed debug.seed system.seed"}};

/// A name with one of its values, in lower case ("true": also without a value), and the words that say so here.
struct SameWords {
  std::string_view other, value, ours;
};
constexpr std::array kSameWords{
    SameWords{"bf16", "true", "--precision bf16"},
    SameWords{"bf16", "false", ""},
    SameWords{"fp16", "true", "--precision fp16"},
    SameWords{"fp16", "false", ""},
    SameWords{"mixed-precision", "no", "--precision float32"},
    SameWords{"resume", "true", "--restart-checkpoint-file latest"},
    SameWords{"resume", "false", ""},
    SameWords{"resume-from-checkpoint", "true", "--restart-checkpoint-file latest"},
    SameWords{"resume-from-checkpoint", "false", ""},
    SameWords{"auto-resume-from-checkpoints", "true", "--restart-checkpoint-file latest"},
    SameWords{"auto-resume-from-checkpoints", "false", ""},
    SameWords{"curriculum-sampling", "true", "--no-shuffle"},
    SameWords{"curriculum-sampling", "false", ""},
    SameWords{"report-to", "tensorboard", ""},
    SameWords{"report-to", "none", "--no-tensorboard"},
    SameWords{"use-tensorboard", "true", ""},
    SameWords{"metrics.enable-tensorboard", "true", ""},
    SameWords{"fsdp-sharding-strategy", "full_shard", "--sharding full-shard"},
    SameWords{"fsdp-sharding-strategy", "shard_grad_op", "--sharding grad-shard"},
    SameWords{"fsdp-sharding-strategy", "no_shard", "--sharding no-shard"},
    SameWords{"fsdp-sharding-strategy", "hybrid_shard", "--sharding hybrid-full-shard"},
    SameWords{"fsdp-sharding-strategy", "hybrid_shard_zero2", "--sharding hybrid-grad-shard"},
    SameWords{"fsdp", "full_shard", "--sharding full-shard"},
    SameWords{"fsdp", "shard_grad_op", "--sharding grad-shard"},
    SameWords{"fsdp", "hybrid_shard", "--sharding hybrid-full-shard"},
    SameWords{"fsdp", "hybrid_shard_zero2", "--sharding hybrid-grad-shard"},
    SameWords{"fsdp", "auto_wrap", ""},
    SameWords{"fsdp", "offload", "--cpu-offload"},
    SameWords{"fsdp-reshard-after-forward", "true", "--sharding full-shard"},
    SameWords{"fsdp-reshard-after-forward", "false", "--sharding grad-shard"},
    SameWords{"fsdp-auto-wrap-policy", "transformer_based_wrap", "--wrap block"},
    SameWords{"fsdp-auto-wrap-policy", "no_wrap", "--wrap none"},
    SameWords{"fsdp-activation-checkpointing", "true", "--activation-checkpointing all"},
    SameWords{"fsdp-activation-checkpointing", "false", ""},
    SameWords{"fsdp-backward-prefetch", "backward_pre", "--backward-prefetch pre"},
    SameWords{"fsdp-backward-prefetch", "backward_post", "--backward-prefetch post"},
    SameWords{"fsdp-backward-prefetch", "no_prefetch", "--backward-prefetch none"},
    SameWords{"fsdp-forward-prefetch", "true", "--forward-prefetch"},
    SameWords{"fsdp-forward-prefetch", "false", "--no-forward-prefetch"},
    SameWords{"assistant-only-loss", "true", "--train-on answers"},
    SameWords{"completion-only-loss", "true", "--train-on answers"},
    SameWords{"train-on-inputs", "false", "--train-on answers"},
    SameWords{"train-on-inputs", "true", "--train-on all"},
    SameWords{"lora-target-linear", "true", "--lora-targets all"},
    SameWords{"lora-target-linear", "false", ""},
    SameWords{"lora-target-modules", "all-linear", "--lora-targets all"},
    SameWords{"load-in-4bit", "true", "--quantize nf4"},
    SameWords{"load-in-4bit", "false", ""},
    SameWords{"load-in-8bit", "false", ""},
    SameWords{"bnb-4bit-quant-type", "nf4", "--quantize nf4"},
    SameWords{"load-best-model-at-end", "true", "--keep-best loss --final best"},
    SameWords{"load-best-model-at-end", "false", ""},
    SameWords{"do-train", "true", ""},
    SameWords{"do-eval", "true", ""},
    SameWords{"activation-checkpoint.mode", "full", "--activation-checkpointing all"},
    SameWords{"activation-checkpoint.mode", "none", "--activation-checkpointing none"},
    SameWords{"use-cpu", "true", "--device cpu"},
    SameWords{"use-cpu", "false", ""},
    SameWords{"no-cuda", "true", "--device cpu"},
    SameWords{"no-cuda", "false", ""}};

/// Names of things that are another option, or none, here, with blanks between, and what to do.
struct Advice {
  std::string_view others, text;
};
constexpr std::array kAdvice{
    Advice{"output-dir job.dump-folder", "a run's folder is OUT/RUN: give --out-dir OUT and --run-name RUN"},
    Advice{"overwrite-output-dir", "a new run needs a --run-name of its own"},
    Advice{"report-to logging-dir use-wandb wandb-project wandb-run-name wandb-entity wandb-mode "
           "metrics.enable-wandb mlflow-tracking-uri",
           "metrics.jsonl and TensorBoard's event file are written to OUT/RUN (--no-tensorboard: only the former); "
           "docs/wandb-mlflow.md shows how W&B and MLflow read them"},
    Advice{"bf16 fp16", "give --precision bf16, fp16 or float32"},
    Advice{"torch-dtype", "give --precision: weights are read in any type"},
    Advice{"resume auto-resume-from-checkpoints resume-from-checkpoint",
           "give --restart-checkpoint-file latest, best or a path"},
    Advice{"train-batch-size training-batch-size",
           "give --batch-size (sequences of one rank at once) or --total-batch-size (of a step on all ranks)"},
    Advice{"per-device-eval-batch-size eval-batch-size", "validations use --batch-size"},
    Advice{"adam-beta1 adam-beta2 beta1 beta2 betas.0 optimizer.beta1 optimizer.beta2 trainer.betas",
           "give both with --betas BETA1 BETA2"},
    Advice{"lr-scheduler-kwargs lr-scheduler-args",
           "give --warmup-shape, --warmup-from, --decay-steps, --decay-shape, --min-lr or --schedule-value"},
    Advice{"lr-scheduler.decay-ratio", "give --decay-steps, the number of steps of the decay"},
    Advice{"save-strategy save-safetensors saves-per-epoch",
           "give --save-every STEPS or 1epoch, or --save-interval-minutes X"},
    Advice{"eval-strategy evaluation-strategy evals-per-epoch validation.enable",
           "give --val-data, and --eval-every STEPS or 1epoch; 0: at the end"},
    Advice{"datasets test-datasets",
           "give --train-data, --val-data, and where keys differ --data-field, --data-form and --chat-template"},
    Advice{"logging-strategy", "give --log-every STEPS; metrics.jsonl has every step"},
    Advice{"do-eval do-predict", "--max-epochs -1 evaluates --val-data without training, and fsdp-eval any checkpoint"},
    Advice{"fsdp fsdp-config fsdp-sharding-strategy fsdp-reshard-after-forward fsdp-min-num-params "
           "fsdp-auto-wrap-policy fsdp-transformer-layer-cls-to-wrap parallelism.fsdp-reshard-after-forward",
           "give --sharding (full-shard, grad-shard, optimizer-shard, no-shard or a hybrid) and --wrap"},
    Advice{"deepspeed zero-stage zero-optimization",
           "give --sharding: full-shard is ZeRO-3, grad-shard ZeRO-2, optimizer-shard ZeRO-1; --offload-optimizer cpu "
           "or nvme:DIR is ZeRO-Offload and ZeRO-Infinity"},
    Advice{"parallelism.data-parallel-shard-degree parallelism.data-parallel-replicate-degree",
           "give --sharding, and --shard-group-size to a hybrid"},
    Advice{"gpus num-gpus n-gpus ngpus num-devices local-rank nproc-per-node nnodes num-processes num-machines "
           "master-addr master-port rdzv-endpoint",
           "mpiexec -n RANKS or srun starts the ranks, and the program recognises the launcher"},
    Advice{"activation-checkpoint.mode recompute-granularity recompute-activations",
           "give --activation-checkpointing all, every:N or none"},
    Advice{"merge-adapters", "--save-final-hf DIR writes the model with its adapters merged at the end"},
    Advice{"use-peft use-lora adapter-name", "give --lora-rank R, and --lora-targets"},
    Advice{"load-in-4bit load-in-8bit bnb-4bit-quant-type", "--quantize nf4 is the quantization that there is"},
    Advice{"load-best-model-at-end metric-for-best-model", "give --keep-best and --final best"},
    Advice{"auto-find-batch-size", "fsdp-memprobe --search finds the largest batch"},
    Advice{"push-to-hub hub-model-id", "--save-final-hf DIR writes the folder, which the hub's own tools upload"},
    Advice{"attn-implementation use-flash-attention-2 flash-attention flash-attn use-flash-attn sdp-attention",
           "the kernel of attention follows from the device and the rows: leave it out"},
    Advice{"torch-compile compile use-liger-kernel training.compile",
           "forward and backward are fused by hand: leave it out"},
    Advice{"dataloader-num-workers dataloader-pin-memory dataloader-drop-last num-workers group-by-length",
           "each rank reads its rows ahead by itself: leave it out"},
    Advice{"profiling.enable-profiling profiler-steps", "give --trace FILE"},
    Advice{"checkpoint.load-step", "give --restart-checkpoint-file, latest or a path"},
    Advice{"job.config-file config-file", "give --config FILE, as --print-config writes it"},
    Advice{"rl", "give --objective dpo, orpo, simpo, cpo or kto (docs/preferences.md)"},
    Advice{"reward-model", "give --head reward (docs/heads.md)"},
    Advice{"trl vllm process-reward-model ebft",
           "no answers are written in training: --objective and --head reward learn from those in the data"},
    Advice{"tensor-parallel-size context-parallel-size expert-parallel-size dp-shard-size dp-replicate-size "
           "sequence-parallel-degree",
           "ranks share the parameters: give --sharding, and --shard-group-size to a hybrid"},
    Advice{"tokens added-tokens-overrides resize-token-embeddings-to-32x",
           "give --add-tokens FILE with the names of new tokens, and --pad-vocab-to 32"},
    Advice{"unfrozen-parameters", "give --train-only with names or globs of what is trained"},
    Advice{"pretraining-dataset streaming", "give --train-data, and --stream to join texts and cut them into rows"},
    Advice{"mix-strategy interleave-probs buffer-size",
           "give --train-data PATH:WEIGHT PATH:WEIGHT, and --mix-end (docs/data-at-scale.md)"},
    Advice{
        "data-path train-data-path data-cache-path blend",
        "give --train-data PATH:WEIGHT PATH:WEIGHT; of Megatron's files the .bin or the .idx (docs/data-at-scale.md)"},
    Advice{"qat quantization gptq loftq-config peft bnb-config-kwargs model-quantization-config",
           "--quantize nf4 is the quantization that there is"},
    Advice{"peft-trainable-token-indices", "give --trainable-tokens"},
    Advice{"relora jagged-restart-steps loraplus-lr-ratio lisa-n-layers galore optim-target-modules",
           "docs/methods.md lists the methods that there are"},
    Advice{"optim-args", "give the optimizer's own options, such as --betas and --eps"},
    Advice{"early-stopping-metric", "give --keep-best NAME, and --patience"},
    Advice{"shuffle-merged-datasets", "give --no-shuffle to read rows in the order of the file"},
    Advice{"eot-tokens default-system-message chat-template-kwargs",
           "give --chat-template FILE, with these words in the template; answers are learnt with their end marks"},
    Advice{"save-only-model", "give --keep-optimizer N: older checkpoints keep their weights alone"},
    Advice{"fsdp-mixed-precision-policy", "give --param-dtype, --reduce-dtype and --buffer-dtype"},
    Advice{"init-from", "give --model, or --restart-checkpoint-file"}};

/// Names whose values change nothing here, with blanks between.
struct WithoutEffect {
  std::string_view others, values;  ///< values: in lower case, with blanks between; "": all
};
constexpr std::array kWithoutEffect{
    WithoutEffect{"wandb-project wandb-entity wandb-watch wandb-name wandb-run-id wandb-log-model wandb-mode use-wandb "
                  "wandb-run-name mlflow-tracking-uri mlflow-experiment-name mlflow-run-name hf-mlflow-log-artifacts "
                  "use-mlflow use-comet comet-api-key comet-workspace comet-project-name comet-mode comet-online "
                  "use-trackio trackio-project-name trackio-run-name trackio-space-id use-tensorboard use-swanlab "
                  "swanlab-project swanlab-experiment-name swanlab-description swanlab-mode swanlab-workspace "
                  "swanlab-log-completions swanlab-completion-max-buffer swanlab-completion-log-interval",
                  ""},
    WithoutEffect{"strict debug dataset-prepared-path dataset-processes dataset-num-proc dataset-keep-in-memory "
                  "dataloader-num-workers dataloader-pin-memory dataloader-prefetch-factor preprocess-shards "
                  "remove-unused-columns num-dataset-shards-to-save include-tokens-per-second include-tkps",
                  ""},
    WithoutEffect{"flash-attention sdp-attention xformers-attention eager-attention flex-attention sage-attention "
                  "attn-implementation flash-attn-cross-entropy flash-attn-rms-norm flash-attn-fuse-mlp "
                  "flash-attn-fuse-qkv flex-attn-compile-kwargs flash-optimum sdpa-varlen large-head-attention",
                  ""},
    WithoutEffect{
        "liger-rope liger-rms-norm liger-layer-norm liger-glu-activation liger-swiglu liger-cross-entropy "
        "liger-fused-linear-cross-entropy liger-rms-norm-gated use-liger-kernel cut-cross-entropy "
        "lora-mlp-kernel lora-qkv-kernel lora-o-kernel lora-embedding-kernel use-kernels torch-compile "
        "torch-compile-backend torch-compile-mode gradient-checkpointing-kwargs lora-on-cpu low-cpu-mem-usage "
        "qlora-sharded-model-loading experimental-skip-move-to-device gc-steps torch-empty-cache-steps",
        ""},
    WithoutEffect{"pad-to-sequence-len pad-to-multiple-of sample-packing-group-size sample-packing-bin-size "
                  "sample-packing-sequentially multipack-real-batches eval-sample-packing eval-batch-size "
                  "batch-flattening loss-watchdog-threshold loss-watchdog-patience merge-lora merge-method "
                  "save-safetensors torchdistx-path special-tokens.pad-token",
                  ""},
    WithoutEffect{"model-type tokenizer-type tokenizer-use-fast tokenizer-legacy trust-remote-code "
                  "tokenizer-save-jinja-files is-llama-derived-model is-mistral-derived-model is-falcon-derived-model "
                  "type-of-model",
                  ""},
    WithoutEffect{"ddp ddp-timeout ddp-bucket-cap-mb ddp-broadcast-buffers ddp-find-unused-parameters fsdp-version "
                  "fsdp-transformer-layer-cls-to-wrap fsdp-state-dict-type fsdp-final-state-dict-type "
                  "fsdp-sync-module-states fsdp-cpu-ram-efficient-loading fsdp-use-orig-params "
                  "fsdp-cpu-offload-pin-memory",
                  ""},
    WithoutEffect{"load-in-8bit reward-model process-reward-model gptq lora-fan-in-fan-out activation-offloading "
                  "layer-offloading group-by-length auto-find-batch-size resize-token-embeddings-to-32x streaming "
                  "shuffle-before-merging-datasets skip-prepare-dataset save-first-step save-only-model bfloat16 "
                  "float16 fp8 relora peft-use-dora peft-use-rslora lr-quadratic-warmup shrink-embeddings "
                  "reinit-weights fsdp-offload-params load-best-model-at-end",
                  "false"},
    WithoutEffect{"shuffle-merged-datasets peft-init-lora-weights pretrain-multipack-attn fsdp-limit-all-gathers",
                  "true"},
    WithoutEffect{"tf32", "auto"},
    WithoutEffect{"metric-for-best-model", "loss eval_loss"},
    WithoutEffect{"greater-is-better", "false"},
    WithoutEffect{"excess-length-strategy", "truncate"}};

/// "--num_train_epochs=3" becomes "num-train-epochs".
std::string name_in(const std::string& word) {
  auto name = word.substr(2, word.find('=') - 2);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::vector<std::string> split(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

bool is_among(std::string_view name, std::string_view names) {
  const auto words = split(names);
  return std::find(words.begin(), words.end(), name) != words.end();
}

/// Returns the words of this program for a name with this value; nothing when the table has no such row.
std::optional<std::string_view> find_words(const std::string& name, const std::string& value) {
  for (const auto& row : kSameWords) {
    if (row.other == name && row.value == value) return row.ours;
  }
  return std::nullopt;
}

/// Returns the option of the same meaning with its dashes; empty: there is none.
std::string find_option(const std::string& name) {
  for (const auto& row : kSameOptions) {
    if (is_among(name, row.others)) return "--" + std::string(row.ours);
  }
  return "";
}

/// \param given  the name as it was typed. \throws UsageError when there is advice about it
void refuse_with_advice(const std::string& given, const std::string& name) {
  for (const auto& row : kAdvice) {
    if (is_among(name, row.others)) throw UsageError(given + " is no option here: " + std::string(row.text));
  }
}

/// Joins the words after --train-data, which take one value: the sources of a mixture. The last --train-data counts.
std::vector<std::string> join_sources(std::vector<std::string> line) {
  std::vector<std::string> words;
  std::optional<std::string> sources;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const auto equals = line[i].find('=');
    if (!line[i].starts_with("--") || name_in(line[i]) != "train-data") {
      words.push_back(std::move(line[i]));
      continue;
    }
    sources = equals == std::string::npos ? "" : line[i].substr(equals + 1);
    while (i + 1 < line.size() && (line[i + 1] == "-" || !line[i + 1].starts_with("-"))) {
      *sources += (sources->empty() ? "" : ",") + line[i + 1];
      ++i;
    }
  }
  if (!sources) return words;
  words.push_back(sources->empty() ? "--train-data" : "--train-data=" + *sources);
  if (sources->empty()) words.emplace_back();  // CLI11 would take the next word for the value of "--train-data="
  return words;
}

}  // namespace

bool changes_nothing(const std::string& name, const std::string& value) {
  return std::ranges::any_of(kWithoutEffect, [&](const auto& row) {
    return is_among(name, row.others) && (row.values.empty() || is_among(in_lower_case(value), row.values));
  });
}

std::vector<std::string> replace_other_names(const OptionTable& table, const std::vector<std::string>& line) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < line.size(); ++i) {
    auto word = line[i];
    const auto equals = word.find('=');
    const bool is_apart = equals == std::string::npos && i + 1 < line.size() && !line[i + 1].starts_with("--");
    const auto value = in_lower_case(equals != std::string::npos ? word.substr(equals + 1)
                                     : is_apart                  ? line[i + 1]
                                                                 : "true");
    const auto* option = word.starts_with("--") ? table.get_option_no_throw(word.substr(0, equals)) : nullptr;
    if (option == nullptr && word.size() > 2 && word.starts_with("--")) {
      const auto name = name_in(word);
      if (const auto own = find_words(name, value)) {
        for (auto& part : split(*own)) words.push_back(std::move(part));
        i += is_apart ? 1 : 0;
        continue;
      }
      const auto ours = find_option(name);
      if (ours.empty() || table.get_option_no_throw(ours) == nullptr) {
        refuse_with_advice(word.substr(0, equals), name);
      } else {
        word = ours + (equals == std::string::npos ? "" : word.substr(equals));
        option = table.get_option_no_throw(ours);
      }
    }
    // "--tf32 True": CLI11 takes the value of a flag only after an equals sign, and in lower case.
    if (option != nullptr && option->get_expected_min() == 0 && (value == "true" || value == "false") &&
        (is_apart || equals != std::string::npos)) {
      word = word.substr(0, word.find('=')) + "=" + value;
      i += is_apart ? 1 : 0;
    }
    words.push_back(word);
  }
  return table.get_option_no_throw("--train-data") == nullptr ? words : join_sources(std::move(words));
}

}  // namespace fsdp
