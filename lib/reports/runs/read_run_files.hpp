#pragma once
// Reads the files in a training run's folder: metrics.jsonl, job.json, memory.json, status, and run.json of its
// newest checkpoint (docs/formats.md). The run may still be active.
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "lib/reports/runs/rank_status.hpp"

namespace fsdp {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

/// A step record of metrics.jsonl. NaN and -1 mean that a value is absent.
struct StepLine {
  std::int64_t step = 0;
  std::int64_t job_step = 0;  ///< step number within its job, from 1
  double loss = kNoNumber;
  double tokens = 0, seconds = 0, tokens_per_second = 0;
  double mfu = kNoNumber, grad_norm = kNoNumber;
  double memory_bytes = kNoNumber;  ///< highest use so far, as RunFiles::peak_bytes
  double received_bytes = -1;  ///< bytes this rank received in the step; for a job's first step, since the job started
  bool saving = false;         ///< a checkpoint was being written during the step
  bool after_a_break = false;  ///< a validation preceded the step
  bool skipped = false;        ///< the optimizer step was skipped
};

struct EvalLine {
  std::string set;  ///< "": the only one, without a name; of games the metric: "chess_legal"; of tasks "TASK.METRIC"
  std::int64_t step = 0;
  double value = kNoNumber;  ///< a loss, or the fraction of correct answers
  bool is_loss = true;       ///< on a validation set
  bool higher_is_better = false;
};

/// A comparison of the ranks.
struct RanksLine {
  std::int64_t step = 0;
  std::int64_t slowest = 0;       ///< rank
  double wait_share = kNoNumber;  ///< of the time, that the others waited for it
  std::string cause;              ///< "" where they hardly did
};

struct SaveLine {
  std::int64_t step = 0;
  double bytes = 0, seconds = 0, waited_seconds = 0;
};

enum class RunStatus {
  done,     ///< all steps were made
  pruned,   ///< ended before that, since it was worse than other runs of its sweep
  stopped,  ///< its job ended in order before that
  ended,    ///< its job was killed or failed
  failed,   ///< the run has ended, and its last loss is not a number
  running,
  silent,  ///< its job may be running, but has no recent heartbeat
  unknown
};
const char* to_string(RunStatus state);

struct RunFiles {
  std::filesystem::path directory;
  std::string name;
  RunStatus state = RunStatus::unknown;
  std::string owner;        ///< process that holds the run's folder; "" for none
  std::string ended_early;  ///< why the run ended before its last step; "" if it did not
  std::vector<StepLine> steps;
  std::map<std::string, std::vector<double>> source_losses;  ///< of a mixture: by source, for each of `steps`
  std::map<std::string, std::vector<double>> means;          ///< StepReport::means by name, likewise
  std::vector<EvalLine> evals;
  std::vector<SaveLine> saves;
  std::vector<RanksLine> ranks;
  std::int64_t bad_lines = 0;      ///< of metrics.jsonl that are no records; a last one without its end is not counted
  std::int64_t total_steps = 0;    ///< 0: not known
  double age_seconds = kNoNumber;  ///< time since metrics.jsonl was last written
  double step_age_seconds = kNoNumber;  ///< time since the end of the last step

  std::int64_t save_every = -1;      ///< steps between saves; 0: not by steps; -1: the job does not tell when it saves
  double save_interval_seconds = 0;  ///< 0: not by time
  bool saves_at_the_end = false;
  double last_save_time = kNoNumber;  ///< when the last save began, or else the job; seconds since 1970
  std::vector<NodeStatus> nodes;      ///< what the ranks use, while the job runs or after it was killed

  double peak_bytes = kNoNumber;       ///< of a rank: of its steps where memory.json tells, else of all it did
  double predicted_bytes = kNoNumber;  ///< of its steps
  double resident_bytes = kNoNumber;
  double card_bytes = 0;             ///< of the GPU
  double alloc_retries = kNoNumber;  ///< GPUs
  double parameters = kNoNumber;
  std::string products;  ///< how matrices were multiplied most recently

  /// The options by long name, and model, ranks, nodes, device.
  std::map<std::string, std::string> settings;
  /// Options that a job which resumes the run has to be given again, as words for a shell; "" for none.
  std::string repeated;
};

/// The runs that `paths` name: each a run's folder, its metrics.jsonl, or a folder of runs (sorted by name, numbers by
/// their value). \throws MissingInput naming a path where no run is
std::vector<std::filesystem::path> find_runs(const std::vector<std::string>& paths);

/// Reads a run repeatedly. Each read() parses only what was appended to metrics.jsonl.
class RunReader {
 public:
  explicit RunReader(std::filesystem::path directory);

  /// The run as it is now. \throws IoError where metrics.jsonl cannot be read. What else is missing or damaged is left
  /// out.
  RunFiles read();

  /// State that a line of metrics.jsonl passes on to the next one.
  struct Between {
    double received = -1;
    bool after_a_break = false;
  };

 private:
  void forget_unless_appended(const std::filesystem::path& path, std::ifstream& in);
  RunFiles read_metrics();
  std::filesystem::path directory_;
  RunFiles metrics_;  ///< content of the complete lines
  Between between_;
  std::size_t offset_ = 0;  ///< end of the last complete line
  std::string end_;         ///< the last bytes before it
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

/// RunReader::read() once.
RunFiles read_run(const std::filesystem::path& directory);

}  // namespace fsdp
