// fsdp-finetune: trains minGPT from scratch, fine-tunes Llama models, or continues from a checkpoint.
#include <nlohmann/json.hpp>

#include "apps/common/finetune_options.hpp"
#include "apps/common/runs_options.hpp"
#include "apps/common/torch_main.hpp"
#include "apps/finetune/finetune_job.hpp"
#include "apps/finetune/reports/job_events.hpp"
#include "apps/finetune/sweep/sweep.hpp"
#include "apps/finetune/sweep/sweep_plan.hpp"
#include "lib/base/process/signal_thread.hpp"

int main(int argc, char** argv) {
  const fsdp::SignalThread signals;
  fsdp::OptionTable app{
      "Trains a language model with fully sharded data parallelism: minGPT from scratch, or a model from its weights.\n"
      "Run it under mpiexec or srun with one rank per GPU (or per group of cores), or as a single rank.\n\n"
      "  mpiexec -n 4 fsdp-finetune --model mingpt --train-data train.h5 --val-data validation.h5\n"
      "  srun fsdp-finetune --model codellama/CodeLlama-7b-hf --train-data games.jsonl --max-seq-length 512 \\\n"
      "      --batch-size 1 --total-batch-size 64 --precision bf16 --gradient-checkpointing\n\n"
      "Exit codes: 0 done, 1 failed, 2 usage, 3 the job does not fit, 4 bad input, 85 stopped early with a good "
      "checkpoint.",
      "fsdp-finetune"};
  fsdp::FinetuneArguments arguments;
  fsdp::add_finetune_options(app, arguments);
  fsdp::SweepArguments sweep;
  fsdp::add_sweep_options(app, sweep);
  app.section("Options");
  app.rewrite_with(fsdp::replace_finetune_words);
  fsdp::RunsArguments watched;
  app.add("watch", watched.runs,
          "train nothing; show the runs in these folders, on a terminal until they end: folders of runs, or a folder "
          "that holds several",
          {.path = fsdp::PathKind::folder})
      ->configurable(false);
  app.set_short_help(
      {{"--model NAME", "a folder with weights, ORG/NAME in the cache of fsdp-download, or mingpt"},
       {"--train-data DATA", "text as .txt, JSON Lines, Parquet or CSV, conversations, or token IDs (.h5)"},
       {"--val-data DATA", "validation data; --val-split 0.05 takes a part of --train-data"},
       {"--seq-len N", "longest sequence in tokens"},
       {"--batch-size N", "sequences of a rank at once; --total-batch-size: of a step on all ranks"},
       {"--max-epochs X", "length of the training; or --max-steps N"},
       {"--lr X", "peak learning rate; --lr-schedule, --warmup-steps"},
       {"--precision TYPE", "float32, bf16 or fp16"},
       {"--lora-rank N", "train adapters of this rank; --quantize nf4 keeps the weights in 4 bits"},
       {"--sharding WORD", "full-shard, grad-shard, no-shard, ...; --activation-checkpointing saves memory"},
       {"--run-name NAME", "the run's folder is runs/NAME: checkpoints, metrics, loss.svg"},
       {"--restart PATH", "go on from a checkpoint: latest, best or a path"},
       {"--save-final-hf DIR", "write a folder that transformers opens at the end"},
       {"--dry-run", "say what the job would do, its memory and its hours, and end"},
       {"--config FILE", "read options from a file, as --print-config writes it, or axolotl's YAML"}});
  app.set_version_flag("--version", [] { return fsdp::torch_version_text("fsdp-finetune"); });
  if (const int code = fsdp::parse(app, argc, argv); code >= 0) return code;
  if (const int code = fsdp::run_alone([&] { fsdp::normalize_finetune_options(app, arguments); }); code != 0)
    return code;
  watched.watch = !watched.runs.empty();
  if (watched.watch) return fsdp::show_runs(watched, arguments.options.runtime);
  arguments.options.program = argv[0];
  fsdp::SweepPlan plan;
  if (const int code = fsdp::run_alone([&] {
        plan = fsdp::plan_sweep(app, arguments, sweep, {argv + 1, argv + argc});
      });
      code != 0)
    return code;
  if (arguments.print_config) return fsdp::print_config(app);
  fsdp::RankEnvironment* ranks = nullptr;
  const auto failed_alike = [&] { return ranks == nullptr || ranks->everyone_failed(fsdp::kAlikePatience); };
  fsdp::JobEvents events(arguments.options.dry_run ? "" : arguments.on_event);
  fsdp::JobListener listener;
  if (events.is_wanted()) {
    listener.ended = [&](int code, const std::string& failure, const fsdp::Logger& log) {
      events.end(code, failure, log);
    };
    listener.longest = events.longest_end();
  }
  return fsdp::run_torch_job(
      arguments.options.runtime,
      [&](fsdp::ProcessGroup& world, const fsdp::Logger& log, nlohmann::json& report) {
        if (plan.runs.empty()) return fsdp::run_finetune_job(app, arguments, events, world, log, report);
        fsdp::require_same_options(world, app);
        return fsdp::run_sweep(plan, world, log, failed_alike, events, report);
      },
      listener, [&](fsdp::RankEnvironment& started) { ranks = &started; });
}
