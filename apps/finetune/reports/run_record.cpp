#include "apps/finetune/reports/run_record.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "apps/common/remedies.hpp"
#include "lib/base/files/file.hpp"
#include "lib/base/files/output_file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/fsdp_finetune/run_values.hpp"
#include "lib/engine/runtime/model_text.hpp"
#include "lib/ranks/agree.hpp"
#include "lib/reports/runs/rank_status.hpp"
#include "lib/training/state/checkpoint_names.hpp"
#include "lib/training/state/latest_link.hpp"

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

bool is_sample(const nlohmann::json& line) {
  return line.is_object() && line.contains("step") && line["step"].is_number_integer() && line.contains("prompt") &&
         line["prompt"].is_string();
}

/// True for a line that a crash or a full disk left incomplete.
bool is_torn(const std::string& line, const nlohmann::json& parsed) {
  return line.empty() || (parsed.is_discarded() && (line[0] == '{' || line[0] == '\0'));
}

/// Formats a sample for TensorBoard as Markdown that shows the text unchanged.
std::string sample_markdown(const nlohmann::json& sample) {
  std::string text = sample.value("prompt", std::string()) + sample.value("text", std::string());
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 5) text.replace(at, 1, "\n    ");
  return "    " + text;
}

/// Advice where the link `latest` cannot be made, for a warning.
std::string what_latest_is(const fs::path& checkpoints) {
  std::error_code error;
  const auto latest = checkpoints / "latest";
  const bool is_folder = fs::is_directory(latest, error) && !fs::is_symlink(latest, error);
  return std::string(
             ": --restart latest, fsdp-eval and fsdp-ckpt-convert take the newest step-N where latest is no "
             "link") +
         (is_folder ? "; the folder of that name, such as a copy of the run has, is left as it is: remove it, and the "
                      "next checkpoint makes the link"
                    : "");
}

constexpr std::size_t kMostSaves = 100;

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

RunRecord::RunRecord(const RunContext& context, RunStart& start, MemoryReporter& memory, std::int64_t resume_step)
    : context_(context), start_(start), memory_(memory), resume_step_(resume_step) {
  keeps_old_run_ = resume_step_ < 0 && old_run_is_there();
}

bool RunRecord::old_run_is_there() const {
  const auto& setup = context_.setup;
  const bool samples = !setup.options.validation.sample_prompts.empty();
  const bool there =
      context_.world.rank() == 0 &&
      (has_entries(setup.checkpoints()) || has_bytes(setup.directory / "metrics.jsonl") ||
       (samples && has_bytes(setup.directory / "samples.jsonl")) || !EventFile::in(setup.directory).empty());
  return any_rank(context_.world, there);
}

/// Moves an older run of this name away, so that checkpoints are neither mixed nor lost.
void RunRecord::set_old_run_aside() const {
  if (context_.world.rank() != 0) return;
  std::error_code error;
  int number = 1;
  while (fs::exists(context_.setup.directory / fmt::format("previous-{}", number), error)) ++number;
  const auto aside = context_.setup.directory / fmt::format("previous-{}", number);
  fs::create_directories(aside, error);
  std::vector<std::string> moved;
  std::vector<std::string> names{"checkpoints",   "metrics.jsonl", "job.json", "memory.json", "speed.json",
                                 "samples.jsonl", "loss.svg",      "loss.png"};  // older versions drew the last one
  if (context_.setup.new_tokenizer) names.emplace_back("tokenizer");             // another one takes its place
  for (const auto& file : EventFile::in(context_.setup.directory)) names.push_back(file.filename().string());
  const auto& options = context_.setup.options;
  for (const auto& output : {options.save_final_full, options.save_final_hf}) {  // this run writes its own there
    const auto name = output.empty() ? std::nullopt : path_below(output, context_.setup.directory);
    if (!name) continue;
    names.push_back(name->string());
    fs::create_directories((aside / *name).parent_path(), error);
  }
  for (const auto& name : names) {
    std::error_code absent;
    if (error || !fs::exists(context_.setup.directory / name, absent)) continue;
    fs::rename(context_.setup.directory / name, aside / name, error);
    if (!error) moved.push_back(name);
  }
  if (error) {
    // Move either all files of the old run or none of them.
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

SettledBest RunRecord::open() {
  const auto& setup = context_.setup;
  check_owner(true);
  if (resume_step_ < 0 && old_run_is_there()) set_old_run_aside();
  if (context_.world.rank() == 0) remove_node_status(setup.directory);  // of an earlier job's ranks
  if (setup.new_tokenizer) run_agreed(context_.world, [&] { setup.new_tokenizer->keep(); });
  context_.world.barrier();
  saver_ = std::make_unique<CheckpointSaver>(context_.runtime, context_.trainer.optimizer(), setup.checkpoints(),
                                             setup.options.keep_last, setup.options.keep_optimizer);
  const auto best = reconcile_best_checkpoint();
  if (context_.world.rank() != 0) return best;
  log_disk();
  metrics_ = std::make_unique<MetricsFile>(setup.directory / "metrics.jsonl", resume_step_, context_.log,
                                           context_.trainer.state().validation_due && context_.validates_here());
  job_ = std::make_unique<JobFile>(context_, std::max<std::int64_t>(0, resume_step_) + 1, memory_.predicted_bytes());
  open_samples();
  if (setup.options.no_tensorboard) return best;
  events_ = std::make_unique<EventFile>(setup.directory, resume_step_, context_.log);
  std::string text = "| option | |\n|---|---|\n";
  const auto manifest = context_.manifest();
  for (const auto& [name, value] : manifest.options.items())
    text += fmt::format("| {} | {} |\n", name, value.get<std::string>());
  events_->add_text("options", text);
  return best;
}

/// Warns where the disk has no room for the checkpoints that are there at once: those that are kept, and the next one
/// while it is written. A run that goes on has those that it keeps.
void RunRecord::log_disk() const {
  const auto* prediction = memory_.prediction();
  const auto& options = context_.setup.options;
  const bool saves = !options.no_final_save || !options.save_every.never() || options.save_interval_minutes > 0;
  if (prediction == nullptr || !saves) return;
  std::error_code error;
  const auto room = fs::space(context_.setup.checkpoints(), error);
  if (error) return;
  const auto one = static_cast<double>(prediction->host.save_bytes) * context_.runtime.mesh().shard.size();
  const int kept = resume_step_ >= 0 ? 0 : std::max(1, options.keep_last);
  const auto available = static_cast<double>(room.available);
  if (available >= one * (kept + 1)) return;
  context_.log.warning(fmt::format(
      "{} has {} free, and a checkpoint takes {}: {} there at once while one is written; make room, or keep fewer with "
      "--keep-last",
      context_.setup.checkpoints().string(), format_bytes(available), format_bytes(one),
      kept == 0 ? "one more is" : fmt::format("{} are", kept + 1)));
}

/// Makes the link `best` agree with the best validation of the run's state.
SettledBest RunRecord::reconcile_best_checkpoint() {
  if (resume_step_ < 0) return {};
  SettledBest best;
  if (context_.world.rank() == 0) {
    best = reconcile_best(context_.setup.checkpoints(), context_.trainer.state().validation, resume_step_);
    if (!best.remark.empty()) context_.log.warning(best.remark);
  }
  std::array<double, 2> figures{best.value, static_cast<double>(best.step)};
  context_.world.broadcast(std::as_writable_bytes(std::span(figures)), 0);
  return {.value = figures[0], .step = static_cast<std::int64_t>(figures[1]), .remark = {}};
}

/// Opens samples.jsonl for appending and removes the lines of steps after resume_step_, as in metrics.jsonl. The file
/// stays unchanged when no line is to be removed and no samples will be written, or when another program wrote it.
void RunRecord::open_samples() {
  const auto file = context_.setup.directory / "samples.jsonl";
  const bool writes = !context_.setup.options.validation.sample_prompts.empty();
  std::error_code error;
  const bool goes_on = resume_step_ >= 0 && fs::exists(file, error);
  if (!writes && !goes_on) return;
  std::ifstream old(file);
  bool to_be_cut = false;
  std::int64_t number = 0;
  for (std::string line; goes_on && std::getline(old, line);) {
    ++number;
    const auto sample = nlohmann::json::parse(line, nullptr, false);
    if (is_sample(sample)) {
      const auto step = sample["step"].get<std::int64_t>();
      to_be_cut = to_be_cut || step > resume_step_;
      if (step <= resume_step_) old_samples_.emplace(step, sample["prompt"].get<std::string>());
    } else if (is_torn(line, sample)) {
      to_be_cut = true;
    } else if (writes) {
      throw FormatError(
          fmt::format("{}, line {}: is no sample of --sample-prompt, so the file is left as it is; move "
                      "it away, or leave out --sample-prompt",
                      file.string(), number));
    } else {
      return;
    }
  }
  if (writes || to_be_cut) samples_ = std::make_unique<MetricsFile>(file, resume_step_, context_.log);
}

void RunRecord::add_metrics(const nlohmann::json& record) {
  if (metrics_) metrics_->add(record);
  if (events_) events_->add(record);
}

void RunRecord::add_sample(const nlohmann::json& sample, int number) {
  const auto step = sample.value("step", std::int64_t{0});
  if (samples_ == nullptr || old_samples_.contains({step, sample.value("prompt", std::string())})) return;
  samples_->add(sample);
  if (events_) events_->add_text(fmt::format("samples/{}", number), sample_markdown(sample), step);
}

void RunRecord::end_job(std::string_view outcome, const std::string& why_early) {
  if (job_) job_->end(outcome, why_early);
}

double RunRecord::seconds_since_save() const { return seconds_since(last_save_); }

std::optional<bool> RunRecord::amend_checkpoint() {
  check_owner(true);
  const auto& state = context_.trainer.state();
  const bool is_pending = saver_->is_pending(state.step);
  std::string problem;
  try {
    if (!saver_->amend(state)) problem = checkpoint_name(state.step) + " is gone";
  } catch (const std::exception& error) {
    problem = fmt::format("{}; the checkpoint is good all the same, but does not know its validation", error.what());
  }
  if (!problem.empty()) context_.log.warning(problem);
  if (is_pending) return std::nullopt;
  return context_.world.broadcast_text(problem, 0).empty();
}

void RunRecord::start_save(bool passing) {
  check_owner(true);
  memory_.disturb();
  auto manifest = context_.manifest();
  manifest.passing = passing;
  saver_->start(manifest, context_.current_lr());
  saved_step_ = manifest.state.step;
  last_save_ = std::chrono::steady_clock::now();
}

std::optional<bool> RunRecord::finish_save(bool wait, const std::function<void()>& appeared) {
  if (!saver_->under_way()) return std::nullopt;
  if (!wait && !every_rank(context_.world, saver_->written())) return std::nullopt;
  check_owner(true);
  const auto result = saver_->finish(appeared);
  start_.clock.after_save(result.seconds);
  save_error_ = result.error;
  if (result.saved) {
    if (metrics_) metrics_->sync();
    if (samples_) samples_->sync();
    last_checkpoint_ = result.path;
    if (job_) job_->add_save(result, saved_step_, seconds_since_save());
    context_.progress.keep(fmt::format("saved     {}   {} in {:.1f} s (training waited {:.2f} s)", result.path.string(),
                                       format_bytes(static_cast<double>(result.size_bytes)), result.seconds,
                                       result.blocked_seconds));
    if (!result.warning.empty()) context_.log.warning(result.warning);
  } else if (context_.world.rank() == 0) {
    context_.log.warning(fmt::format("saving failed, the last good checkpoint stays: {}", result.error));
  }
  return result.saved;
}

bool RunRecord::prune(std::int64_t proven_step) {
  bool until_proven = false;
  try {
    until_proven = saver_->prune(proven_step);
  } catch (const std::exception& error) {
    context_.log.warning(
        fmt::format("{}: old checkpoints stay: {}", context_.setup.checkpoints().string(), error.what()));
  }
  return any_rank(context_.world, until_proven);
}

void RunRecord::strip(std::int64_t proven_step, bool wait) {
  if (saver_ == nullptr) return;
  check_owner(true);
  for (const auto& problem : saver_->strip(proven_step, wait))
    context_.log.warning("a checkpoint keeps its optimizer's state: " + problem);
}

bool RunRecord::make_link(const RunAction& action, const RunLife& life) {
  if (context_.world.rank() != 0) return true;
  const auto folder = context_.setup.checkpoints();
  std::string advice;
  try {
    if (action.kind == RunActionKind::point_best) {
      point_best_to(folder, action.step);
    } else if (action.kind == RunActionKind::point_latest) {
      advice = what_latest_is(folder);
      point_latest_to(folder, action.step);
    } else {
      const auto where = roll_back_latest(folder, life.newest_step, action.step);
      if (!where.empty())
        context_.log.warning(fmt::format("the newest checkpoint may be bad: latest is {} again", where));
    }
    return true;
  } catch (const std::exception& error) {  // some file systems have no links; the checkpoints are there all the same
    if (warned_.insert(action.kind).second) context_.log.warning(told(error) + advice);
    return false;
  }
}

void RunRecord::give_up(const std::string& why, const RunLife& life) {
  std::string advice;
  if (context_.world.rank() == 0 && life.is_open) {
    std::error_code error;
    const auto folder = context_.setup.checkpoints();
    try {
      const auto proven = roll_back_latest(folder, life.newest_step, life.proven_step);
      if (!proven.empty()) last_checkpoint_ = proven;
    } catch (const std::exception& failure) {
      context_.log.warning(told(failure));
    }
    const auto saved = checkpoints_of_run(folder);
    advice = saved.empty() ? std::string("; no checkpoint was saved")
                           : fmt::format("; {} is the newest checkpoint to go on from",
                                         fs::weakly_canonical(saved.front(), error).string());
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
    context_.log.warning(fmt::format("no loss curve: {}", error.what()));  // training continues
  }
}

JobFile::JobFile(const RunContext& context, std::int64_t first_step, std::int64_t predicted_bytes)
    : context_(context), content_(run_manifest_to_json(context.manifest())) {
  const auto& setup = context.setup;
  content_.erase("state");
  content_["format"] = "fsdp-job";
  content_["program_version"] = FSDP_VERSION;
  content_["options"] = setup.options.as_given;
  content_["repeated"] = setup.options.repeated;
  content_["parameters"] = num_parameters(context.runtime.decoder().parameters);
  content_["nodes"] = context.runtime.mesh().num_nodes;
  content_["threads"] = setup.threads;
  content_["device"] =
      setup.device.backend == nullptr ? "cpu" : setup.device.backend->info(setup.device.device.index()).name;
  content_["micro_batch_size"] = setup.batches.micro_batch_size;
  content_["accumulation_steps"] = setup.batches.accumulation_steps;
  content_["rows_per_step"] = setup.batches.rows_per_step;
  content_["tokens_per_row"] = setup.train_data->tokens_per_row();
  content_["first_step"] = first_step;
  content_["total_steps"] = setup.total_steps;
  content_["predicted_bytes"] = predicted_bytes;
  content_["save_every"] = static_cast<std::int64_t>(std::ceil(setup.save_every));
  content_["save_interval_minutes"] = setup.options.save_interval_minutes;
  content_["final_save"] = !setup.options.no_final_save;
  content_["started"] = unix_seconds();
  content_["saves"] = nlohmann::json::array();
  write();
}

void JobFile::add_save(const SaveResult& save, std::int64_t step, double age_seconds) {
  auto& saves = content_["saves"];
  if (saves.size() >= kMostSaves) saves.erase(0);
  saves.push_back({{"step", step},
                   {"started", unix_seconds() - age_seconds},
                   {"bytes", save.size_bytes},
                   {"seconds", save.seconds},
                   {"waited_seconds", save.blocked_seconds}});
  write();
}

void JobFile::end(std::string_view outcome, const std::string& why_early) {
  content_["ended"] = unix_seconds();
  content_["outcome"] = outcome;
  if (!why_early.empty()) content_["ended_early"] = why_early;
  write();
}

void JobFile::write() {
  try {
    replace_file(context_.setup.directory / "job.json", printable_json(content_, 1) + "\n");
  } catch (const std::exception& error) {
    if (!warned_) context_.log.warning(fmt::format("{}; training goes on", error.what()));
    warned_ = true;
  }
}

}  // namespace fsdp::detail
