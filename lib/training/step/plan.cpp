#include "lib/training/step/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <string_view>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/training/data/token_cache.hpp"
#include "lib/training/objectives/judged_answers.hpp"
#include "lib/training/objectives/preferences.hpp"
#include "lib/training/objectives/reward.hpp"

namespace fsdp {

bool trains(const TrainOptions& options) { return options.max_epochs >= 0 || options.max_steps > 0; }

BatchPlan plan_batches(const TrainOptions& options, int ranks) {
  BatchPlan plan;
  plan.micro_batch_size = options.batch_size;
  const auto per_round = options.batch_size * ranks;
  if (options.total_batch_size == 0) {
    plan.accumulation_steps = std::max(1, options.gradient_accumulation_steps);
    plan.rows_per_step = per_round * plan.accumulation_steps;
    return plan;
  }
  plan.rows_per_step = options.total_batch_size;
  if (options.total_batch_restored && options.total_batch_size % per_round != 0) {
    // Another number of ranks than before keeps the optimization: the step's rows are dealt out as evenly as they go.
    plan.accumulation_steps = static_cast<int>((options.total_batch_size + per_round - 1) / per_round);
    const auto parts = static_cast<std::int64_t>(plan.accumulation_steps) * ranks;
    plan.micro_batch_size = (options.total_batch_size + parts - 1) / parts;
    return plan;
  }
  if (options.total_batch_size % per_round != 0) {
    const auto below = options.total_batch_size / per_round * per_round;
    throw RequestError(fmt::format("a total batch of {} is not a multiple of {} x {} = {}", options.total_batch_size,
                                   options.batch_size, format_count_of(ranks, "rank"), per_round),
                       {Remedy::other_batch,
                        below > 0 ? fmt::format("{} or {}", below, below + per_round) : std::to_string(per_round)});
  }
  plan.accumulation_steps = static_cast<int>(options.total_batch_size / per_round);
  if (options.gradient_accumulation_steps != 0 && options.gradient_accumulation_steps != plan.accumulation_steps) {
    throw RequestError(
        fmt::format("an accumulation of {} micro-batches contradicts a total batch of {}, which needs {}",
                    options.gradient_accumulation_steps, options.total_batch_size, plan.accumulation_steps),
        Remedy::of_accumulation);
  }
  return plan;
}

std::int64_t plan_steps(const TrainOptions& options, std::int64_t num_rows, std::int64_t rows_per_step) {
  if (options.max_steps > 0) return options.max_steps;
  const double rows = options.max_epochs * static_cast<double>(num_rows);
  if (!(std::abs(rows) < 1e18)) {
    throw RequestError(fmt::format("{} epochs of {} rows are more than can be counted", options.max_epochs, num_rows));
  }
  return static_cast<std::int64_t>(std::ceil(rows / static_cast<double>(rows_per_step)));
}

OptimizerOptions plan_optimizer(const TrainOptions& options) {
  const auto check = optimizer_type(options.optimizer.kind).check;
  if (check != nullptr) check(options.optimizer);
  auto optimizer = options.optimizer;
  optimizer.child_tuning.seed = options.seed;
  return optimizer;
}

std::shared_ptr<const Objective> plan_objective(const TrainOptions& options) {
  if (options.objective.head == HeadKind::reward)
    return std::make_shared<const RewardObjective>(options.objective.center_rewards);
  if (options.objective.judges_answers()) return std::make_shared<const JudgedAnswers>(options.objective);
  if (options.objective.compares_answers()) return std::make_shared<const PreferenceObjective>(options.objective);
  return std::make_shared<const Objective>();
}

StepShape plan_step(const TrainOptions& options, const BatchPlan& batches) {
  return {batches.accumulation_steps, takes_bf16_gradients(options.optimizer)};
}

LrSchedule plan_schedule(const TrainOptions& options, std::int64_t total_steps) {
  auto schedule = options.schedule;
  if (options.min_lr > 0) schedule.min_ratio = options.min_lr / schedule.peak;
  if (schedule.total_steps == 0) schedule.total_steps = total_steps;
  if (schedule.warmup_steps == 0)
    schedule.warmup_steps = static_cast<std::int64_t>(options.warmup_ratio * static_cast<double>(schedule.total_steps));
  if (schedule.shape != LrSchedule::Shape::wsd) return schedule;
  constexpr std::int64_t kUsualShare = 10;  // of MiniCPM, which named this schedule
  if (schedule.decay_steps == 0) schedule.decay_steps = std::max<std::int64_t>(1, schedule.total_steps / kUsualShare);
  if (schedule.decay_steps > schedule.total_steps - schedule.warmup_steps)
    throw RequestError(
        fmt::format("a decay of {} and a warm-up of {} are more than the {} of the schedule",
                    format_count_of(schedule.decay_steps, "step"), format_count_of(schedule.warmup_steps, "step"),
                    format_count_of(schedule.total_steps, "step")),
        Remedy::of_decay);
  return schedule;
}

namespace {

/// True for the names of places in which a run keeps its checkpoints, and of its claim.
bool is_of_a_run(std::string_view name) { return name == "checkpoints" || name == ".owner"; }

}  // namespace

std::filesystem::path run_directory(const TrainOptions& options) {
  auto name = options.run_name;
  if (name.empty())
    // "ORG/NAME@REVISION" is NAME; a directory may be named with a slash at its end.
    name = (std::filesystem::path(options.model.model.substr(0, options.model.model.find('@'))) / "")
               .parent_path()
               .filename()
               .string();
  const std::filesystem::path relative(name);
  // Names travel in lists, logs and links.
  const bool control = std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 32 || c == 127; });
  if (name.empty() || name == "." || name == ".." || control) {
    std::replace_if(
        name.begin(), name.end(), [](unsigned char c) { return c < 32 || c == 127; }, '?');
    throw RequestError("'" + printable(name) + "' is no name for a run's directory", Remedy::of_run_name);
  }
  if (relative.is_absolute() || std::find(relative.begin(), relative.end(), "..") != relative.end()) {
    throw RequestError("the run's name '" + name + "' leads out of " + options.out_dir, Remedy::name_below);
  }
  const auto normal = relative.lexically_normal();
  if (*normal.begin() == kTokenCacheName)
    throw RequestError("the run's name '" + name + "': the folder of this name keeps encoded texts",
                       Remedy::other_run_name);
  for (const auto& part : normal) {
    if (is_of_a_run(part.string()))
      throw RequestError("the run's name '" + name + "': runs keep their own files in places named " + part.string(),
                         Remedy::other_run_name);
  }
  const auto directory = std::filesystem::path(options.out_dir) / name;
  for (const auto& part : directory) {
    if (part.native().size() > NAME_MAX)
      throw RequestError(fmt::format("a folder's name of {} bytes ({}...), a file system takes {}",
                                     part.native().size(), printable(part.string().substr(0, 32)), NAME_MAX),
                         Remedy::of_run_folder);
  }
  return directory;
}

}  // namespace fsdp
