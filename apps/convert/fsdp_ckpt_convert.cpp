// fsdp-ckpt-convert: converts between all supported checkpoint formats, lists a checkpoint's contents, compares two
// checkpoints, and verifies one.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common/app_main.hpp"
#include "apps/common/shared_options.hpp"
#include "apps/convert/convert_job.hpp"
#include "lib/base/process/signal_thread.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/ranks/mpi_plugin.hpp"

namespace {

using fsdp::PathKind;

constexpr const char* kExamples = R"(Examples
  FSDP1 local state of 8 GPUs -> one file that torch.load reads:
    fsdp-ckpt-convert runs/epoch3 full.pt --model-config runs/config.json
  Training checkpoint -> a directory that transformers opens, in bf16:
    fsdp-ckpt-convert runs/a/checkpoints/latest hf/ --to hf --dtype bf16 --config-from tokenizer/
  Weights from transformers -> a checkpoint of 4 ranks to train on:
    fsdp-ckpt-convert llama/ start/ --to dcp --shards 4
  A run of 8 ranks, optimizer and all -> 4 ranks:
    fsdp-ckpt-convert step-00001000 step-on-4 --shards 4
  DeepSpeed ZeRO, the folder with `latest` -> float32 weights in one file:
    fsdp-ckpt-convert out/ model.safetensors --model-only
  A checkpoint of Lightning, Composer or a Trainer -> one .pt with model, optimizer and counters:
    fsdp-ckpt-convert out/checkpoint-500 full.pt
  Megatron-core -> transformers, and back:
    fsdp-ckpt-convert megatron/ hf/ --to hf --config-from llama/
    fsdp-ckpt-convert hf/ megatron/ --to megatron --dtype bf16
  The attention weights only, renamed:
    fsdp-ckpt-convert full.pt attn.safetensors --model-only --include '*.attn.*' --rename '^transformer\.='
  A base model and its adapters -> one model:
    fsdp-ckpt-convert llama/ merged/ --merge-adapter runs/a/adapter --to hf
  A model for llama.cpp:
    fsdp-ckpt-convert runs/a llama.gguf --dtype q8_0
  A 4-bit model that transformers opens:
    fsdp-ckpt-convert llama/ llama-4bit/ --to hf --quantize nf4 --double-quant
  Inspect, check and compare checkpoints:
    fsdp-ckpt-convert --inspect full.pt
    fsdp-ckpt-convert --check runs/a/checkpoints/latest
    fsdp-ckpt-convert --verify runs/a hf/
  A run that takes less room:
    fsdp-ckpt-convert --prune runs/a
  On the cores of several nodes: mpiexec -n 8 fsdp-ckpt-convert IN OUT)";

/// Replaces CLI11's generated usage line, whose description of the paths is of no use.
class Help : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: fsdp-ckpt-convert IN OUT [OPTIONS]\n"
           "       fsdp-ckpt-convert --inspect IN | --check IN | --verify A B | --prune RUN  [OPTIONS]\n\n";
  }
  std::string make_positionals(const CLI::App*) const override { return ""; }
};

/// The help's first paragraph, in lines: the formats of the table.
std::string description() {
  constexpr std::size_t kWidth = 112;
  std::string text =
      "Converts a checkpoint to another format, and detects the format of the input. It reads fsdp-finetune's own "
      "checkpoints";
  for (const auto& format : fsdp::checkpoint_formats())
    if (!format.help.empty()) text.append(", ").append(format.help);
  text += "; it writes " + fsdp::format_names(nullptr, " and ") + ".";
  std::string lines;
  std::size_t column = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(' ', at), text.size());
    const bool is_full = column + end - at > kWidth;
    lines += column == 0 ? "" : is_full ? "\n" : " ";
    column = is_full ? 0 : column;
    lines.append(text, at, end - at);
    column += end - at + 1;
    at = end + 1;
  }
  return lines;
}

void add_modes(fsdp::OptionTable& t, fsdp::ConvertOptions& o) {
  t.section("Instead of converting");
  t.add("inspect", o.inspect, "print what IN is and holds; reads no tensor data");
  t.add("verify", o.verify, "compare two checkpoints of any formats tensor by tensor; exit with 3 if they differ");
  t.add("check", o.check, "read all of IN; exit with 4 if it is damaged, with 3 if it has NaN or infinite elements");
  t.add("prune", o.prune,
        "take the optimizer's state out of the older checkpoints of the run IN, which keep their weights");
  t.add("keep-optimizer", o.keep_optimizer,
        "with --prune: number of newest checkpoints that keep the optimizer's state, as that of latest does",
        {.range = {.from = 1}});
  t.add("tolerance", o.tolerance,
        "with --verify: largest difference of floating-point elements, absolute or relative to their size, whichever "
        "allows more; 0: equal bit for bit");
}

void add_local_state_options(fsdp::OptionTable& t, fsdp::InputOptions& o) {
  t.section("FSDP1 local state (shapes of the parameters; run.json beside IN is found)");
  t.add("model-config", o.model_config, "config.json of the model, or its directory; also for Megatron-core",
        {.path = PathKind::file});
  t.add("reference", o.reference, "full checkpoint of the same model (.pt or safetensors)", {.path = PathKind::file});
  t.add("param-shapes", o.param_shapes, "JSON file with the parameters' names and shapes in the model's order",
        {.path = PathKind::file});
  t.add("tie", o.ties, "A=B: parameter A is tied to B and has no storage of its own; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  t.add("optim-files", o.optim_files,
        "pattern of the ranks' raw optimizer states that belong to IN, such as 'optim-rank*.pt'",
        {.path = PathKind::file});
}

void add_change_options(fsdp::OptionTable& t, fsdp::InputOptions& o) {
  t.section("Changes");
  t.add("include", o.include, "convert only names that match the pattern (* any characters, ? one); may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  t.add("exclude", o.exclude, "omit names that match the pattern; wins over --include; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  t.add("rename", o.rename,
        "REGEX=NEW: replace matches in names (ECMAScript expression; $1 to $9 for groups; split at the last '='); may "
        "be repeated, applied in order")
      ->allow_extra_args(false)
      ->take_all();
  t.add("model-only", o.model_only, "omit optimizer, scheduler and counters");
  t.add("merge-adapter", o.merge_adapter,
        "directory of an adapter in peft's format (LoRA, rsLoRA, DoRA) to add to IN's matrices",
        {.path = PathKind::folder});
  t.add(
      "dequantize", o.dequantize,
      "convert 4-bit matrices (bitsandbytes' nf4) back to the type that they were quantized from, float8 with a scale "
      "per block to float32");
  fsdp::add_quantize_options(
      t, o.quantize, "quantize the matrices of the model's blocks to 4-bit form, as bitsandbytes does: nf4 or none");
  t.add("map", o.map, "map of names: " + fsdp::name_maps(), {.suggestions = fsdp::name_maps()});
  t.add("dtype", o.dtype,
        "type of the model's floating-point tensors: float32, bf16, fp16, float64, or q8_0 with --to gguf; optimizer "
        "state stays unchanged",
        {.suggestions = "float32, bf16, fp16, q8_0"});
}

void add_output_options(fsdp::OptionTable& t, fsdp::ConvertOptions& o) {
  t.section("Output");
  t.add("to", o.to, "format of OUT: " + fsdp::format_names() + "; default: by OUT's name",
        {.suggestions = fsdp::format_names(nullptr, ", ")});
  t.add("shards", o.shards, "with --to dcp and --to megatron: number of ranks to write for; default: 1",
        {.default_text = "", .range = {.from = 1, .to = 65536}});
  t.add("max-shard-size", o.max_shard_size,
        "with --to hf: most tensor data in one file: 16KB, 5GB (10^9), 5GiB (2^30); default: 5GB");
  t.add("config-from", o.config_from,
        "with --to hf or gguf: directory with config.json and tokenizer files to take; default: IN",
        {.path = PathKind::folder});
  t.add("pre-tokenizer", o.pre_tokenizer,
        "with --to gguf: llama.cpp's name of the pre-tokenizer (gpt-2, llama-bpe, qwen2, ...); default: by "
        "tokenizer.json");
  t.add("overwrite", o.overwrite, "replace an existing OUT when the new one is complete");
  t.add("sync", o.sync, "force all data to disk before OUT gets its name");
  t.add("dry-run", o.dry_run, "print what would be written, and write nothing");
}

void add_run_options(fsdp::OptionTable& t, fsdp::ConvertOptions& o) {
  t.section("How it runs");
  t.add("jobs", o.jobs, "threads per rank; 0: the cores that it may use, at most 4", {.range = {.from = 0, .to = 256}});
  t.add("progress-every", o.progress_seconds, "seconds between progress lines in a log file", {.unit = "seconds"});
  fsdp::add_job_options(t, o.job);
}

std::string version_text() {
  return fmt::format("fsdp-ckpt-convert {}\n{}\nMPI is loaded under a launcher only", FSDP_VERSION,
                     fsdp::mpi_version_lines());
}

}  // namespace

int main(int argc, char** argv) {
  const fsdp::SignalThread signals;
  fsdp::OptionTable app{
      description() +
          "\n"
          "Needs no GPU, no Python and little memory. It only reads the input, and writes the output atomically.\n"
          "Exit codes: 0 done, 1 failed or stopped, 2 usage, 3 the answer is no, 4 bad input.",
      "fsdp-ckpt-convert"};
  app.formatter(std::make_shared<Help>());
  app.footer(kExamples);
  fsdp::ConvertOptions options;
  app.add_option("paths", options.paths, "IN OUT")->take_all()->expected(1, 2)->required();
  add_output_options(app, options);
  add_change_options(app, options.input);
  add_local_state_options(app, options.input);
  add_modes(app, options);
  add_run_options(app, options);
  app.add_config("file to read options from");
  app.set_short_help({{"--to FORMAT", fsdp::format_names() + "; default: by OUT's name"},
                      {"--dtype TYPE", "type of the tensors in OUT: bfloat16, float32, ..."},
                      {"--model-only", "omit optimizer, scheduler and counters"},
                      {"--merge-adapter DIR", "add an adapter in peft's format to the matrices"},
                      {"--include PATTERN", "convert only these names; --exclude, --rename REGEX=NEW"},
                      {"--quantize nf4", "4-bit matrices; --dequantize undoes them"},
                      {"--shards N", "with --to dcp and megatron: ranks to write for"},
                      {"--overwrite", "replace an existing OUT when the new one is complete"},
                      {"--inspect", "print what IN holds"},
                      {"--check", "read all of IN and look for NaN and infinite elements"},
                      {"--verify", "compare two checkpoints"},
                      {"--dry-run", "say what would be written"},
                      {"--json", "print the result as JSON"}});
  app.set_version_flag("--version", version_text);
  if (const int code = fsdp::parse(app, argc, argv); code >= 0) return code;
  return fsdp::run_job(options.job, fsdp::load_mpi,
                       [&](fsdp::ProcessGroup& world, const fsdp::Logger& log, nlohmann::json& report) {
                         fsdp::require_same_options(world, app);
                         return fsdp::run_convert_job(world, options, log, report);
                       });
}
