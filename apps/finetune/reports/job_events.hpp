#pragma once
// --on-event: a command of the user hears of a job's start and of its end.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/messages/log.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/training/run/run_clock.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

/// Each rank has one; only the rank that speaks for the job runs the command: rank 0, or where the job ends because
/// another rank failed alone, that rank, since rank 0 is about to be ended. Without a command nothing is done.
class JobEvents final : public detail::StepObserver {
 public:
  /// Longest time of a command. A job that a time limit stops does so this much earlier.
  static constexpr int kLimit_seconds = 30;

  explicit JobEvents(std::string command) : command_(std::move(command)) {}
  JobEvents(const JobEvents&) = delete;
  JobEvents& operator=(const JobEvents&) = delete;
  ~JobEvents() override;

  bool is_wanted() const { return !command_.empty(); }
  /// Longest time of end(), which may wait for the command of the start, or for another rank's.
  static constexpr std::chrono::seconds longest_end() { return std::chrono::seconds(2 * kLimit_seconds + 10); }
  /// Makes the run known. Collective.
  void set_run(ProcessGroup& world, const TrainOptions& options);
  /// The job begins its work; the command runs meanwhile. \param step  finished steps
  void start(std::int64_t step, std::int64_t total_steps, const Logger& log);
  void after_step(const StepReport& step, bool last) override;
  /// The message of an end that is no failure.
  void set_message(std::string message) { message_ = std::move(message); }
  /// The job has ended: waits until the command has run. Call on rank 0, or on ranks that failed while others did not.
  /// \param failure  the message of an error, or ""
  void end(int exit_code, const std::string& failure, const Logger& log);

 private:
  /// The variables of a command.
  std::vector<std::pair<std::string, std::string>> variables_of(const std::string& event, const std::string& message,
                                                                const std::string& exit_code) const;
  bool speaks(const Logger& log) const;

  std::string command_;
  std::string run_, message_;
  std::filesystem::path directory_;
  std::string token_;  ///< of this job, for the mark of the rank that speaks; "" when there is one rank
  std::int64_t step_ = 0, total_steps_ = 0;
  double loss_ = std::nan("");
  std::thread starting_;
};

}  // namespace fsdp
