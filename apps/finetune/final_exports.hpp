#pragma once
// --save-final-full writes the run into one file; --save-final-hf writes the model in the transformers format. All
// ranks make both from a distributed checkpoint. --final best loads the weights of checkpoints/best before the exports.
#include <filesystem>
#include <functional>
#include <optional>

#include "apps/finetune/run_setup.hpp"
#include "lib/checkpoints/programs/conversion_request.hpp"

namespace fsdp::detail {

/// Checks before training that the outputs may be written to their paths. Collective.
/// \throws UsageError, IoError
void check_final_exports(ProcessGroup& world, const RunSetup& setup);

/// Returns the dtype for RunSetup::export_dtype: the dtype of the weights that the run began with. It comes from the
/// weights' folder, from a checkpoint of another program, or from the run's own checkpoint.
/// \throws FormatError, IoError when the weights cannot be read
std::string export_dtype(const RunSetup& setup);

class FinalExports {
 public:
  FinalExports(const RunContext& context, std::function<bool()> stopped)
      : context_(context), stopped_(std::move(stopped)) {}

  /// Writes the requested exports. Returns false when stopped; no output then exists under its final name. Collective.
  /// \param checkpoint  holds the current state; empty: there is none (--no-final-save), so a temporary checkpoint is
  /// made
  bool write(const std::filesystem::path& checkpoint);

 private:
  std::filesystem::path state_for_final(std::filesystem::path checkpoint, const std::filesystem::path& temporary);
  bool save_full(const std::filesystem::path& checkpoint);
  bool save_model(const std::filesystem::path& checkpoint);
  bool save_merged(const std::filesystem::path& temporary);
  Conversion of_checkpoint(const std::filesystem::path& checkpoint) const;
  bool save_hf(Conversion conversion);

  const RunContext& context_;
  std::function<bool()> stopped_;
};

/// Loads the weights of checkpoints/best when they differ from the last weights, and logs which weights are used.
/// Collective.
/// \return the best checkpoint; nothing when there is none: the last weights then stay
/// \throws what open_checkpoint() and load_checkpoint() throw
std::optional<std::filesystem::path> load_best(const RunContext& context);

}  // namespace fsdp::detail
