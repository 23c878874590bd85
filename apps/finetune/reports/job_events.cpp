#include "apps/finetune/reports/job_events.hpp"

#include <fmt/format.h>

#include <utility>

#include "apps/finetune/reports/event_command.hpp"
#include "lib/base/files/file.hpp"
#include "lib/base/files/shared_write.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/elapsed.hpp"
#include "lib/base/types/error.hpp"
#include "lib/training/step/plan.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kMark = "told.", kTold = "told";
constexpr std::size_t kLongestMessage_bytes = 8192;  // the kernel refuses variables above 128 KiB

const char* event_of(int exit_code) {
  if (exit_code == static_cast<int>(ExitCode::ok)) return "done";
  return exit_code == static_cast<int>(ExitCode::stopped_early) ? "stopped" : "failed";
}

bool holds_told(const fs::path& mark) {
  try {
    return read_text_file(mark, 64) == kTold;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

JobEvents::~JobEvents() {
  if (starting_.joinable()) starting_.join();
}

void JobEvents::set_run(ProcessGroup& world, const TrainOptions& options) {
  if (!is_wanted()) return;
  std::error_code error;
  directory_ = fs::absolute(run_directory(options), error).lexically_normal();
  run_ = run_directory(options).lexically_relative(options.out_dir).string();
  if (world.size() == 1) return;
  token_ = world.broadcast_text(unique_name(), 0);
  if (world.rank() != 0) return;
  for (fs::directory_iterator entry(directory_ / ".owner", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->path().filename().string().starts_with(kMark)) fs::remove(entry->path(), ignored);
  }
}

void JobEvents::start(std::int64_t step, std::int64_t total_steps, const Logger& log) {
  step_ = step;
  total_steps_ = total_steps;
  if (!is_wanted() || log.rank() != 0) return;
  const auto message = fmt::format("from step {} of {}", step, total_steps);
  const auto variables = variables_of("start", message, "");
  const auto tell = [command = command_, variables, log] {
    detail::run_event_command("start", command, variables, std::chrono::seconds(kLimit_seconds), log);
  };
  try {
    starting_ = start_thread("runs the command of --on-event", [&] { return std::thread(tell); });
  } catch (const RuntimeFailure&) {
    tell();
  }
}

void JobEvents::after_step(const StepReport& step, bool) {
  step_ = step.step;
  if (step.has_loss()) loss_ = step.loss;
}

std::vector<std::pair<std::string, std::string>> JobEvents::variables_of(const std::string& event,
                                                                         const std::string& message,
                                                                         const std::string& exit_code) const {
  return {{"FSDP_EVENT", event},
          {"FSDP_RUN", run_},
          {"FSDP_RUN_DIR", directory_.string()},
          {"FSDP_STEP", std::to_string(step_)},
          {"FSDP_TOTAL_STEPS", total_steps_ > 0 ? std::to_string(total_steps_) : ""},
          {"FSDP_LOSS", std::isnan(loss_) ? "" : fmt::format("{:.6g}", loss_)},
          {"FSDP_MESSAGE", printable(message).substr(0, kLongestMessage_bytes)},
          {"FSDP_EXIT_CODE", exit_code}};
}

/// One of several ranks that failed speaks: the one that makes the mark. The others wait until it has spoken, because
/// they would end it with the job.
bool JobEvents::speaks(const Logger& log) const {
  const bool is_first = log.rank() == 0;
  if (token_.empty()) return is_first;
  const auto folder = directory_ / ".owner";
  const auto mark = folder / (std::string(kMark) + token_);
  try {
    if (create_exclusively(mark, "")) return true;
  } catch (const Error&) {
    return is_first;
  }
  std::error_code error;
  if (!fs::exists(mark, error)) return is_first;  // the job has no folder, or not yet
  const auto start = std::chrono::steady_clock::now();
  while (seconds_since(start) < kLimit_seconds + 5 && !holds_told(mark))
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return false;
}

void JobEvents::end(int exit_code, const std::string& failure, const Logger& log) {
  if (!is_wanted()) return;
  if (starting_.joinable()) starting_.join();
  const bool is_failure = !failure.empty();
  if (is_failure && !speaks(log)) return;
  const std::string event = event_of(exit_code);
  detail::run_event_command(event, command_,
                            variables_of(event, is_failure ? failure : message_, std::to_string(exit_code)),
                            std::chrono::seconds(kLimit_seconds), log);
  if (!is_failure || token_.empty()) return;
  std::error_code error;
  const auto mark = directory_ / ".owner" / (std::string(kMark) + token_);
  try {
    if (fs::exists(mark, error)) publish_text(mark, kTold);
  } catch (const Error&) {
    // The other ranks wait for as long as a command may take.
  }
}

}  // namespace fsdp
