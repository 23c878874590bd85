#pragma once
// The parts of a run that do the work of its actions (run_schedule.hpp). A program implements them, with the words and
// options of its command line. All functions that change something are collective.
#include <functional>
#include <optional>
#include <string>

#include "lib/training/run/run_schedule.hpp"
#include "lib/training/state/best.hpp"

namespace fsdp {

/// The folder of a run: checkpoints and their links.
class RunFolder {
 public:
  virtual ~RunFolder() = default;
  virtual bool is_open() const = 0;
  /// Opens the run's files; this job writes only from here on. \return the best checkpoint that a continued run has
  virtual SettledBest open() = 0;
  /// Checks that no other job has taken over the run's folder, see RunOwner::check().
  virtual void check_owner(bool now) = 0;

  /// Starts to save the current state in the background; no save may be pending.
  /// \param passing  the checkpoint is deleted when another one is checkpoints/best, or newer
  virtual void start_save(bool passing) = 0;
  /// Makes the checkpoint of a background save appear once all ranks have written their parts.
  /// \param wait  false: returns at once while a rank is still writing
  /// \param appeared  as for CheckpointSaver::finish()
  /// \return whether the checkpoint was saved; nothing when no save was finished
  virtual std::optional<bool> finish_save(bool wait, const std::function<void()>& appeared) = 0;
  virtual double seconds_since_save() const = 0;
  /// The error of the newest save; empty when it had none.
  virtual const std::string& save_error() const = 0;
  /// Writes the validation state into the run.json of this step's checkpoint.
  /// \return whether that was done; nothing when that checkpoint is still being written
  virtual std::optional<bool> amend_checkpoint() = 0;
  /// Removes superseded checkpoints. \return as CheckpointSaver::prune(), on every rank
  virtual bool prune(std::int64_t proven_step) = 0;
  /// As CheckpointSaver::strip(). A problem is a warning.
  virtual void strip(std::int64_t proven_step, bool wait) = 0;
  virtual void keep_for_good(std::int64_t step) = 0;
  /// Does an action that is about a link, on rank 0. A failure is a warning, once for each kind of action.
  /// \return false on failure
  virtual bool make_link(const RunAction& action, const RunLife& life) = 0;
  /// Ends a job whose state is of no use. \throws RuntimeFailure that begins with `why` and says what is left
  virtual void give_up(const std::string& why, const RunLife& life) = 0;
};

class RunValidation {
 public:
  virtual ~RunValidation() = default;
  /// Validates the current state. \param poll  called while the validation goes on
  /// \return false when the job must end first: no result is then used
  virtual bool run(const std::function<void()>& poll) = 0;
  /// The value of the newest result that decides; nothing when there is no result.
  virtual std::optional<DecidingValue> deciding_value() const = 0;
  /// True if the run is to end here, since other runs were so much better.
  virtual bool falls_behind() const = 0;
  /// Logs the newest result. \param life  whose verdict is on it
  virtual void tell(const RunLife& life) = 0;
  /// A loss of the current state, as Trainer::probe_loss().
  virtual double probe_loss() = 0;
};

/// Files that a job leaves when no step is left.
class RunOutputs {
 public:
  virtual ~RunOutputs() = default;
  virtual void write_adapter() = 0;
  /// \param is_saved  the newest checkpoint has the current state. \return false when stopped by a signal
  virtual bool export_files(bool is_saved) = 0;
};

}  // namespace fsdp
