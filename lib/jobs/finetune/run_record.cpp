#include "lib/jobs/finetune/run_record.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/base/elapsed.hpp"
#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"
#include "lib/mpi/agree.hpp"
#include "lib/runtime/text.hpp"

namespace fsdp::detail {
namespace {

namespace fs = std::filesystem;

bool has_entries(const fs::path& directory) {
  std::error_code error;
  return fs::is_directory(directory, error) && !fs::is_empty(directory, error);
}

bool has_bytes(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return !error && size > 0;
}

}  // namespace

RunRecord::RunRecord(const RunContext& context, RunStart& start, MemoryWatch& memory, std::int64_t resume_step)
    : context_(context), start_(start), memory_(memory), resume_step_(resume_step) {
  keeps_old_run_ = resume_step_ < 0 && old_run_is_there();
  if (!keeps_old_run_) open();
}

bool RunRecord::old_run_is_there() const {
  const auto& setup = context_.setup;
  const bool there =
      context_.world.rank() == 0 && (has_entries(setup.checkpoints()) || has_bytes(setup.directory / "metrics.jsonl") ||
                                     !EventFile::in(setup.directory).empty());
  return any_rank(context_.world, there);
}

/// A new run under a used name must neither mix with the old one's checkpoints nor lose them.
void RunRecord::set_old_run_aside() const {
  if (context_.world.rank() != 0) return;
  std::error_code error;
  int number = 1;
  while (fs::exists(context_.setup.directory / fmt::format("previous-{}", number), error)) ++number;
  const auto aside = context_.setup.directory / fmt::format("previous-{}", number);
  fs::create_directories(aside, error);
  std::vector<std::string> moved;
  std::vector<std::string> names{"checkpoints", "metrics.jsonl", "job.json", "memory.json",
                                 "speed.json",  "loss.svg",      "loss.png"};
  for (const auto& file : EventFile::in(context_.setup.directory)) names.push_back(file.filename().string());
  for (const auto& name : names) {
    std::error_code absent;
    if (error || !fs::exists(context_.setup.directory / name, absent)) continue;
    fs::rename(context_.setup.directory / name, aside / name, error);
    if (!error) moved.push_back(name);
  }
  if (error) {
    // All of the old run or nothing of it.
    std::error_code ignored;
    for (const auto& name : moved) fs::rename(aside / name, context_.setup.directory / name, ignored);
    fs::remove(aside, ignored);
    throw IoError(aside.string() + ": cannot set the run of that name aside: " + error.message() + " (see --run-name)");
  }
  context_.log.info(fmt::format("earlier   run of this name moved to {}", aside.string()));
}

void RunRecord::check_owner(bool now) {
  if (start_.owner != nullptr) start_.owner->check(now);
}

void RunRecord::open() {
  const auto& setup = context_.setup;
  check_owner(true);
  if (resume_step_ < 0 && old_run_is_there()) set_old_run_aside();
  context_.world.barrier();
  saver_ = std::make_unique<CheckpointSaver>(context_.runtime, context_.trainer.optimizer(), setup.checkpoints(),
                                             setup.options.keep_last);
  if (context_.world.rank() != 0) return;
  metrics_ = std::make_unique<MetricsFile>(setup.directory / "metrics.jsonl", resume_step_, context_.log);
  job_ = std::make_unique<JobFile>(context_, std::max<std::int64_t>(0, resume_step_) + 1, memory_.predicted_bytes());
  if (setup.options.no_tensorboard) return;
  events_ = std::make_unique<EventFile>(setup.directory, resume_step_, context_.log);
  std::string text = "| option | |\n|---|---|\n";
  const auto manifest = context_.manifest();
  for (const auto& [name, value] : manifest.options.items())
    text += fmt::format("| {} | {} |\n", name, value.get<std::string>());
  events_->add_text("options", text);
}

void RunRecord::add_metrics(const nlohmann::json& record) {
  if (metrics_) metrics_->add(record);
  if (events_) events_->add(record);
}

void RunRecord::end_job(bool stopped) {
  if (job_) job_->end(stopped ? "stopped" : "done");
}

double RunRecord::seconds_since_save() const { return seconds_since(last_save_); }

void RunRecord::start_save(bool final_one) {
  finish_save(true);
  check_owner(true);
  memory_.disturb();
  saver_->start(context_.manifest(), context_.current_lr());
  saved_step_ = context_.trainer.state().step;
  last_save_ = std::chrono::steady_clock::now();
  if (final_one) finish_save(true);
}

bool RunRecord::finish_save(bool wait) {
  if (!saver_->under_way()) return false;
  if (!wait && !every_rank(context_.world, saver_->written())) return false;
  check_owner(true);
  const auto result = saver_->finish();
  start_.clock.after_save(result.seconds);
  save_error_ = result.error;
  if (result.saved) {
    if (metrics_) metrics_->sync();
    last_checkpoint_ = result.path;
    if (job_) job_->add_save(result, saved_step_);
    context_.progress.line(fmt::format("saved     {}   {} in {:.1f} s (training waited {:.2f} s)", result.path.string(),
                                       format_bytes(static_cast<double>(result.size_bytes)), result.seconds,
                                       result.blocked_seconds));
    if (!result.warning.empty()) context_.log.warning(result.warning);
  } else if (context_.world.rank() == 0) {
    context_.log.warning(fmt::format("saving failed, the last good checkpoint stays: {}", result.error));
  }
  return true;
}

void RunRecord::give_up(const std::string& why) {
  context_.progress.finish();
  if (saver_) finish_save(true);
  std::string advice;
  if (context_.world.rank() == 0 && saver_) {
    const auto proven = saver_->doubt();
    std::error_code error;
    const auto latest = fs::weakly_canonical(context_.setup.checkpoints() / "latest", error);
    if (!proven.empty()) last_checkpoint_ = proven;
    advice = fs::exists(latest, error) ? fmt::format("; {} is the newest checkpoint to go on from", latest.string())
                                       : std::string("; no checkpoint was saved");
  } else if (context_.world.rank() == 0 && keeps_old_run_) {
    advice = fmt::format("; the earlier run in {} is as it was", context_.setup.directory.string());
  }
  throw RuntimeFailure(context_.world.broadcast_text(
      why + advice + ". A smaller --lr, --clip-grad-norm, a longer --warmup-steps or float32 may help", 0));
}

void RunRecord::draw_losses() const {
  if (!metrics_) return;
  const auto& setup = context_.setup;
  const auto& config = setup.config;
  const auto& sharding = setup.options.sharding;
  try {
    draw_loss_curve(setup.directory,
                    fmt::format("{} {} x {}", architecture_name(config), config.num_layers, config.embed_size),
                    fmt::format("{}, {}, {}", to_string(sharding.sharding),
                                format_count_of(context_.world.size(), "rank"), float_type_name(sharding.precision)));
  } catch (const std::exception& error) {
    context_.log.warning(fmt::format("no loss curve: {}", error.what()));  // the training is worth more
  }
}

}  // namespace fsdp::detail
