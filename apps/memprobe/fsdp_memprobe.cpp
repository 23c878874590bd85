// fsdp-memprobe: predicts before a job is queued how much memory it will take and what fits.
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/common/torch_main.hpp"
#include "apps/memprobe/memprobe_options.hpp"
#include "lib/base/process/signal_thread.hpp"

namespace {

/// Lets the kernel's OOM killer choose this trial before any other process.
void offer_to_the_oom_killer() { std::ofstream("/proc/self/oom_score_adj") << "1000"; }

/// Ends the trial when the process that reads its report ends; poll() tells whether it has ended already.
void end_with_the_search() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd report{STDOUT_FILENO, 0, 0};
  if (::poll(&report, 1, 0) > 0 && (report.revents & POLLERR) != 0) ::_exit(static_cast<int>(fsdp::ExitCode::failed));
}

std::vector<std::string> own_command(int argc, char** argv) {
  std::vector<std::string> command{"/proc/self/exe"};
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) command[0] = self.string();
  command.insert(command.end(), argv + 1, argv + argc);
  return command;
}

}  // namespace

int main(int argc, char** argv) {
  const fsdp::SignalThread signals;
  fsdp::OptionTable app{
      "Predicts the memory and speed of a training job, without running it and without a GPU. It runs fsdp-finetune's\n"
      "step on tensors without data, with a model of the GPU's allocator, and takes fsdp-finetune's options.\n\n"
      "  fsdp-memprobe --model codellama/CodeLlama-7b-hf --ranks 4 --gpu a100-80g --seq-len 512 --precision bf16 \\\n"
      "      --gradient-checkpointing\n"
      "  fsdp-memprobe ... --search --sharding all --activation-checkpointing both --plan plan.ini\n"
      "  fsdp-memprobe ... --search model --sharding all --batch-size 1\n"
      "  fsdp-memprobe ... --gpu h100 --search ranks --batch-size 1\n"
      "  fsdp-memprobe ... --nodes 1,2,8 --ranks-per-node 4 --gpu a100-40g --search --sharding hybrid-full-shard\n"
      "  mpiexec -n 2 fsdp-memprobe --num-layers 4 --num-heads 4 --embed-size 256 --measure\n\n"
      "Exit codes: 0 done, 1 failed, 2 usage, 3 nothing fits, 4 bad input.",
      "fsdp-memprobe"};
  fsdp::MemprobeArguments arguments;
  fsdp::add_memprobe_options(app, arguments);
  app.set_short_help({{"--model NAME", "a folder, ORG/NAME in the cache, a known model (llama-3-70b), or mingpt"},
                      {"--gpu NAME", "a100-40g, a100-80g, h100, h200, l40s, ..., or its memory (79GiB)"},
                      {"--ranks N", "GPUs of the job; --ranks-per-node N, --nodes 1,2,8"},
                      {"--seq-len N", "longest sequence in tokens; --batch-size N: sequences of a GPU at once"},
                      {"--search", "find the largest batch (model: most layers; ranks: fewest GPUs)"},
                      {"--sharding WORD", "a strategy, a list of them, or all"},
                      {"--lora-rank N", "adapters; --quantize nf4; --optimizer, --offload-optimizer"},
                      {"--tokens N", "length of the run, for hours and GPU hours; --price X: of an hour"},
                      {"--plan FILE", "write the options that fit for fsdp-finetune --config"}});
  app.set_version_flag("--version", [] { return fsdp::torch_version_text("fsdp-memprobe"); });
  if (const int code = fsdp::parse(app, argc, argv); code >= 0) return code;
  if (const int code = fsdp::run_alone([&] { fsdp::normalize_spellings(app); }); code != 0) return code;
  fsdp::normalize_search(app, arguments);
  if (arguments.job.print_config) return fsdp::print_config(app);
  arguments.options.trial_command = own_command(argc, argv);
  if (arguments.trial) end_with_the_search();
  if (arguments.options.alone) offer_to_the_oom_killer();
  return fsdp::run_torch_job(arguments.job.options.runtime,
                             [&](fsdp::ProcessGroup& world, const fsdp::Logger& log, nlohmann::json& report) {
                               fsdp::normalize_memprobe_options(app, arguments);
                               fsdp::require_same_options(world, app);
                               const auto ignored = fsdp::log_config(app, arguments.job.notes, log);
                               std::optional<fsdp::MemprobeChoice> choice;
                               const auto code = fsdp::run_memprobe(world, arguments.options, log, report, choice);
                               if (!ignored.empty()) report["ignored"].update(ignored.to_json());
                               if (world.rank() == 0 && !arguments.plan_file.empty()) {
                                 if (choice) {
                                   fsdp::write_plan(app, arguments, *choice);
                                   report["plan"] = arguments.plan_file;
                                   log.info("plan      " + arguments.plan_file);
                                 } else {
                                   const auto advice = report.value("advice", std::string());
                                   log.warning("--plan: nothing fits, " + arguments.plan_file + " was not written" +
                                               (advice.empty() ? "" : ": " + advice));
                                 }
                               }
                               return code;
                             });
}
