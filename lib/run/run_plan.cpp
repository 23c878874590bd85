#include "lib/run/run_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/base/error.hpp"
#include "lib/base/text_format.hpp"
#include "lib/run/checkpoint_load.hpp"
#include "lib/run/foreign_model.hpp"

namespace fsdp {

BatchPlan plan_batches(const TrainOptions& options, int world_size) {
  BatchPlan plan;
  plan.rows_per_micro_batch = options.batch_size;
  if (options.batch_size < 1)
    throw UsageError(fmt::format("--batch-size is {}, it must be at least 1", options.batch_size));
  if (options.gradient_accumulation_steps < 0) throw UsageError("--gradient-accumulation-steps must not be negative");
  if (options.total_batch_size < 0) throw UsageError("--total-batch-size must not be negative");
  constexpr std::int64_t kMostRows = 1'000'000'000;  // products of the three stay far from overflow
  const auto at_most = [](std::int64_t value, std::int64_t limit, const char* option) {
    if (value > limit) throw UsageError(fmt::format("{} is {}, it can be at most {}", option, value, limit));
  };
  at_most(options.batch_size, kMostRows, "--batch-size");
  at_most(options.total_batch_size, kMostRows, "--total-batch-size");
  at_most(options.gradient_accumulation_steps, 1'000'000, "--gradient-accumulation-steps");
  const auto per_round = options.batch_size * world_size;
  if (options.total_batch_size == 0) {
    plan.accumulation_steps = std::max(1, options.gradient_accumulation_steps);
    plan.rows_per_step = per_round * plan.accumulation_steps;
    return plan;
  }
  plan.rows_per_step = options.total_batch_size;
  if (options.total_batch_restored && options.total_batch_size % per_round != 0) {
    // Another number of ranks than before keeps the optimization: the step's rows are dealt out as evenly as they go.
    plan.accumulation_steps = static_cast<int>((options.total_batch_size + per_round - 1) / per_round);
    const auto parts = static_cast<std::int64_t>(plan.accumulation_steps) * world_size;
    plan.rows_per_micro_batch = (options.total_batch_size + parts - 1) / parts;
    return plan;
  }
  if (options.total_batch_size % per_round != 0) {
    const auto below = options.total_batch_size / per_round * per_round;
    throw UsageError(fmt::format(
        "--total-batch-size {} is not a multiple of --batch-size {} x {} = {}; use {}{} or another --batch-size",
        options.total_batch_size, options.batch_size, format_count_of(world_size, "rank"), per_round,
        below > 0 ? fmt::format("{} or ", below) : std::string(), below + per_round));
  }
  plan.accumulation_steps = static_cast<int>(options.total_batch_size / per_round);
  if (options.gradient_accumulation_steps != 0 && options.gradient_accumulation_steps != plan.accumulation_steps) {
    throw UsageError(fmt::format("--gradient-accumulation-steps {} contradicts --total-batch-size {}, which needs {}",
                                 options.gradient_accumulation_steps, options.total_batch_size,
                                 plan.accumulation_steps));
  }
  return plan;
}

namespace {

ModelWish model_wish(const ModelOptions& options) {
  ModelWish wish;
  if (!options.directory.empty()) wish.config = read_model_config(options.directory);
  const std::map<std::string, std::int64_t> sizes{{"num-layers", options.num_layers},
                                                  {"num-heads", options.num_heads},
                                                  {"embed-size", options.embed_size},
                                                  {"ffn-hidden-size", options.ffn_hidden_size},
                                                  {"vocab-size", options.vocab_size}};
  for (const auto& name : options.given_sizes) {
    const auto size = sizes.find(name);
    if (size == sizes.end() || (name == "ffn-hidden-size" && size->second == 0)) continue;
    wish.sizes.insert(*size);
  }
  return wish;
}

}  // namespace

bool agree_on_checkpoint(ProcessGroup& world, const std::string& problem, const std::filesystem::path& checkpoint,
                         bool older_exist, const Logger& log) {
  if (world.all_reduce(problem.empty() ? 0.0 : 1.0, Reduce::max) == 0) return true;
  const auto problems = world.gather(problem, 0);
  for (const auto& text : problems) {
    if (text.empty()) continue;
    log.warning(fmt::format("{} cannot be used: {}{}", checkpoint.string(), text,
                            older_exist ? "; trying the checkpoint before" : ""));
    break;
  }
  return false;
}

void fail_together(ProcessGroup& world, const std::string& problem) {
  if (world.all_reduce(problem.empty() ? 0.0 : 1.0, Reduce::max) == 0) return;
  std::string first;
  for (const auto& text : world.gather(problem, 0)) {
    if (first.empty()) first = text;
  }
  throw FormatError(world.broadcast_text(first, 0));
}

void take_first_usable(ProcessGroup& world, RestartPoint& point, const Logger& log) {
  while (!point.candidates.empty()) {
    const auto& path = point.candidates.front();
    std::string problem;
    try {
      auto opened = open_checkpoint(path, point.ours_only);
      point.manifest = std::move(opened.manifest);
      point.foreign = std::move(opened.foreign);
    } catch (const Error& error) {
      problem = error.what();
      if (point.candidates.size() == 1) throw;
    }
    if (agree_on_checkpoint(world, problem, path, point.candidates.size() > 1, log)) return;
    point.candidates.erase(point.candidates.begin());
  }
  throw FormatError("no usable checkpoint is left");
}

std::optional<RestartPoint> find_restart(ProcessGroup& world, const TrainOptions& options,
                                         const std::filesystem::path& checkpoints, const Logger& log) {
  if (options.restart_checkpoint.empty()) return std::nullopt;
  // Rank 0 decides; the others might see a shared file system a moment later.
  std::string text;
  std::string problem;
  if (world.rank() == 0) {
    try {
      for (const auto& path : checkpoint_candidates(options.restart_checkpoint, checkpoints))
        text += path.string() + '\n';
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  problem = world.broadcast_text(problem, 0);
  if (!problem.empty()) throw MissingInput(problem);
  text = world.broadcast_text(text, 0);
  RestartPoint point;
  point.ours_only = names_latest(options.restart_checkpoint);
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = text.find('\n', begin);
    point.candidates.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  take_first_usable(world, point, log);
  return point;
}

ModelConfig plan_model(const TrainOptions& options, const std::optional<RestartPoint>& restart) {
  ModelConfig config;
  const auto& wish = options.model;
  if (restart && !restart->knows_run()) {
    config = foreign_model(*restart->foreign, model_wish(wish));
  } else if (restart) {
    config = restart->manifest.config;
  } else if (wish.model == "mingpt") {
    config.num_layers = wish.num_layers;
    config.num_heads = wish.num_heads;
    config.embed_size = wish.embed_size;
    config.ffn_hidden_size = wish.ffn_hidden_size != 0 ? wish.ffn_hidden_size : 4 * wish.embed_size;
    config.vocab_size = wish.vocab_size;
    config.block_size = wish.seq_len == 0 ? 256 : wish.seq_len;
  } else {
    config = read_model_config(wish.directory);
  }
  config.dropout = wish.dropout;
  config.validate();
  if (wish.seq_len > config.block_size) {
    throw UsageError(
        fmt::format("--seq-len {} is longer than the {} positions of the model", wish.seq_len, config.block_size));
  }
  return config;
}

std::int64_t plan_steps(const TrainOptions& options, std::int64_t num_rows, std::int64_t rows_per_step) {
  if (options.max_steps > 0) return options.max_steps;
  const double rows = options.max_epochs * static_cast<double>(num_rows);
  if (!(std::abs(rows) < 1e18)) {
    throw UsageError(
        fmt::format("--max-epochs {} of {} rows are more than can be counted", options.max_epochs, num_rows));
  }
  return static_cast<std::int64_t>(std::ceil(rows / static_cast<double>(rows_per_step)));
}

AdamWOptions plan_optimizer(const TrainOptions& options) {
  const auto in_unit = [](double beta) { return beta >= 0 && beta < 1; };
  if (options.betas.size() != 2 || !in_unit(options.betas[0]) || !in_unit(options.betas[1])) {
    throw UsageError("--betas takes two numbers, each at least 0 and less than 1");
  }
  const auto not_negative = [](double value, const char* option) {
    if (!(value >= 0) || !std::isfinite(value))
      throw UsageError(fmt::format("{} is {}, it must be a number >= 0", option, value));
  };
  not_negative(options.eps, "--eps");
  not_negative(options.weight_decay, "--weight-decay");
  not_negative(options.clip_grad_norm, "--clip-grad-norm");
  return {options.betas[0], options.betas[1], options.eps, options.weight_decay};
}

LrSchedule plan_schedule(const TrainOptions& options, std::int64_t total_steps) {
  if (!(options.lr >= 0) || !std::isfinite(options.lr))
    throw UsageError(fmt::format("--lr is {}, it must be a number >= 0", options.lr));
  if (options.warmup_steps < 0) throw UsageError("--warmup-steps must not be negative");
  LrSchedule schedule;
  schedule.shape = parse_lr_schedule(options.lr_schedule);
  schedule.peak = options.lr;
  schedule.total_steps = options.schedule_steps > 0 ? options.schedule_steps : total_steps;
  schedule.warmup_steps =
      options.warmup_steps > 0
          ? options.warmup_steps
          : static_cast<std::int64_t>(options.warmup_ratio * static_cast<double>(schedule.total_steps));
  return schedule;
}

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
  if (name.empty() || name == "." || name == ".." || control)
    throw UsageError("--run-name '" + printable(name) + "' is no name for a directory");
  if (relative.is_absolute() || std::find(relative.begin(), relative.end(), "..") != relative.end()) {
    throw UsageError("--run-name '" + name + "' leads out of --out-dir " + options.out_dir +
                     ": give a name below it, and another --out-dir for another place");
  }
  return std::filesystem::path(options.out_dir) / name;
}

}  // namespace fsdp
