#pragma once
// --save-final-full and --save-final-hf: the run in one file, and the model as transformers opens it. Both are made
// from a distributed checkpoint by all ranks together.
// --final best loads the weights of checkpoints/best before the exports.
#include <filesystem>
#include <functional>
#include <optional>

#include "apps/finetune/run_setup.hpp"
#include "lib/files/transform/convert_job.hpp"

namespace fsdp::detail {

/// Checks before training that the outputs may be written to their paths. Collective.
/// \throws UsageError, IoError
void check_final_exports(ProcessGroup& world, const RunSetup& setup);

/// RunSetup::export_dtype: of the weights that the run began with, from their folder, from a checkpoint of another
/// program, or as an earlier job found it. \throws FormatError, IoError where the folder's weights cannot be read
std::string export_dtype(const RunSetup& setup);

class FinalExports {
 public:
  FinalExports(const RunContext& context, std::function<bool()> stopped)
      : context_(context), stopped_(std::move(stopped)) {}

  /// Writes the requested exports. Returns false when stopped; no output then exists under its final name. Collective.
  /// \param checkpoint  holds the state as it is now; empty: there is none (--no-save), so one is made for the time
  ///                    being
  bool write(const std::filesystem::path& checkpoint);

 private:
  std::filesystem::path state_for_final(std::filesystem::path checkpoint, const std::filesystem::path& temporary);
  bool save_full(const std::filesystem::path& checkpoint);
  bool save_model(const std::filesystem::path& checkpoint);
  bool save_merged(const std::filesystem::path& temporary);
  ConvertOptions of_checkpoint(const std::filesystem::path& checkpoint) const;
  bool save_hf(ConvertOptions options);

  const RunContext& context_;
  std::function<bool()> stopped_;
};

/// Replaces the last weights by those of checkpoints/best where the two differ, and logs which were taken. Collective.
/// \return the checkpoint; nothing when there is none, and the last weights stay
/// \throws what open_checkpoint() and load_checkpoint() throw
std::optional<std::filesystem::path> load_best(const RunContext& context);

}  // namespace fsdp::detail
