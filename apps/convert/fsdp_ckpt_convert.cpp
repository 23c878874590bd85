// fsdp-ckpt-convert: converts between all supported checkpoint formats, lists a checkpoint's contents, compares two
// checkpoints, and verifies one.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common/app_main.hpp"
#include "apps/common/shared_options.hpp"
#include "lib/files/transform/convert_job.hpp"
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
  The attention weights only, renamed:
    fsdp-ckpt-convert full.pt attn.safetensors --model-only --include '*.attn.*' --rename '^transformer\.='
  The base that adapters were trained beside, and the adapters -> one model:
    fsdp-ckpt-convert llama/ merged/ --merge-adapter runs/a/adapter --to hf
  A model in 4 bits, as transformers opens it:
    fsdp-ckpt-convert llama/ llama-4bit/ --to hf --quantize nf4 --double-quant
  What is in it, is it sound, are they equal:
    fsdp-ckpt-convert --inspect full.pt
    fsdp-ckpt-convert --check runs/a/checkpoints/latest
    fsdp-ckpt-convert --verify full.pt hf/ --model-only
  On the cores of several nodes: mpiexec -n 8 fsdp-ckpt-convert IN OUT)";

/// Replaces CLI11's generated usage line, whose description of the paths is of no use.
class Help : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: fsdp-ckpt-convert IN OUT [OPTIONS]\n"
           "       fsdp-ckpt-convert --inspect IN | --check IN | --verify A B  [OPTIONS]\n\n";
  }
  std::string make_positionals(const CLI::App*) const override { return ""; }
};

void add_modes(fsdp::OptionTable& t, fsdp::ConvertOptions& o) {
  t.section("Instead of converting");
  t.add("inspect", o.inspect, "show what IN is and holds; reads no tensor data");
  t.add("verify", o.verify, "compare two checkpoints of any formats tensor by tensor; 3 if they differ");
  t.add("check", o.check, "read all of IN: 4 if it is damaged, 3 if it has NaN or infinite elements");
  t.add("tolerance", o.tolerance,
        "of --verify: floating-point elements may differ by this, or by this times their size where that is "
        "more; 0: bit for bit");
}

void add_local_state_options(fsdp::OptionTable& t, fsdp::InputOptions& o) {
  t.section("FSDP1 local state: where the parameters' shapes come from (run.json beside it is found)");
  t.add("model-config", o.model_config, "config.json of the model, or its directory", {.path = PathKind::file});
  t.add("reference", o.reference, "a full checkpoint of the same model (.pt or safetensors)", {.path = PathKind::file});
  t.add("param-shapes", o.param_shapes, "JSON with names and shapes in the model's order", {.path = PathKind::file});
  t.add("tie", o.ties, "A=B: parameter A has no storage of its own but is B; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  t.add("optim-files", o.optim_files,
        "pattern of raw per-rank optimizer states that belong to it, such as 'optim-rank*.pt'",
        {.path = PathKind::file});
}

void add_change_options(fsdp::OptionTable& t, fsdp::InputOptions& o) {
  t.section("What changes on the way");
  t.add("include", o.include, "only names that match (* any letters, ? one); may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  t.add("exclude", o.exclude, "not the names that match; wins over --include; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  t.add("rename", o.rename, "REGEX=NEW, $1..$9 for groups, split at the last '='; applied in order")
      ->allow_extra_args(false)
      ->take_all();
  t.add("model-only", o.model_only, "drop optimizer, scheduler and counters");
  t.add("merge-adapter", o.merge_adapter,
        "directory with an adapter (LoRA, rsLoRA, DoRA) that becomes part of IN's matrices",
        {.path = PathKind::folder});
  t.add("dequantize", o.dequantize, "matrices stored in 4 bits (bitsandbytes' nf4) as 16-bit ones again");
  fsdp::add_quantize_options(
      t, o.quantize, "keep the matrices of a Llama's blocks in 4 bits, as transformers and bitsandbytes do: nf4");
  t.add("map", o.map, "mingpt-to-gpt2, gpt2-to-mingpt, llama-to-hf, hf-to-llama, hf-to-meta or none",
        {.suggestions = "mingpt-to-gpt2, gpt2-to-mingpt, llama-to-hf, hf-to-llama, hf-to-meta, none"});
  t.add("dtype", o.dtype, "of the model's floating-point tensors: float32, bf16, fp16, ...",
        {.suggestions = "float32, bf16, fp16"});
}

void add_output_options(fsdp::OptionTable& t, fsdp::ConvertOptions& o) {
  t.section("Output");
  t.add("to", o.to, "torch, safetensors, hf or dcp; by default as OUT's suffix says",
        {.suggestions = "torch, safetensors, hf, dcp"});
  t.add("shards", o.shards, "of dcp: the ranks to write for (1)",
        {.default_text = "", .range = {.from = 1, .to = 65536}});
  t.add("max-shard-size", o.max_shard_size, "of hf: the largest file (5GB)");
  t.add("config-from", o.config_from, "of hf: directory with config.json and tokenizer files",
        {.path = PathKind::folder});
  t.add("overwrite", o.overwrite, "replace an existing OUT");
  t.add("sync", o.sync, "have everything on disk before OUT gets its name");
  t.add("dry-run", o.dry_run, "say what would be written, write nothing");
}

void add_run_options(fsdp::OptionTable& t, fsdp::ConvertOptions& o) {
  t.section("How it runs");
  t.add("jobs", o.jobs, "threads per rank; 0: the cores it may use, at most 4", {.range = {.from = 0, .to = 256}});
  t.add("progress-every", o.progress_seconds, "seconds between progress lines in a log file", {.unit = "seconds"});
  fsdp::add_job_options(t, o.job);
}

std::string version_text() {
  return fmt::format("fsdp-ckpt-convert {}\nMPI {} (loaded under a launcher only)", FSDP_VERSION,
                     fsdp::loaded_mpi_version());
}

}  // namespace

int main(int argc, char** argv) {
  fsdp::OptionTable app{
      "Turns a checkpoint of any format into any other: PyTorch's distributed checkpoints (FSDP1, FSDP2), FSDP1 local\n"
      "state, .pt files, safetensors and directories of them, fsdp-finetune's own. The input's format is found out.\n"
      "Needs no GPU, no Python and little memory; the input is only read, the output appears whole or not at all.\n"
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
  app.add_config("read options from a file");
  app.set_version_flag("--version", version_text);
  if (const int code = fsdp::parse(app, argc, argv); code >= 0) return code;
  return fsdp::run_job(options.job, fsdp::load_mpi,
                       [&](fsdp::ProcessGroup& world, const fsdp::Logger& log, nlohmann::json& report) {
                         fsdp::require_same_options(world, app);
                         return fsdp::run_convert_job(world, options, log, report);
                       });
}
