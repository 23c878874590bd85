#pragma once
// --save-final-full and --save-final-hf: the run in one file, and the model as transformers opens it. Both are made
// from a distributed checkpoint by all ranks together.
#include <filesystem>
#include <functional>

#include "apps/finetune/run_context.hpp"
#include "lib/files/transform/convert_job.hpp"

namespace fsdp::detail {

/// Whether they may be written where they are to go: before hours of training, not after them. Collective.
/// \throws UsageError, IoError
void check_final_exports(ProcessGroup& world, const RunSetup& setup);

/// RunSetup::export_dtype: of the weights that the run began with, from their folder, from a checkpoint of another
/// program, or as an earlier job found it. \throws FormatError, IoError where the folder's weights cannot be read
std::string export_dtype(const RunSetup& setup);

class FinalExports {
 public:
  FinalExports(const RunContext& context, std::function<bool()> stopped)
      : context_(context), stopped_(std::move(stopped)) {}

  /// Writes what was asked for. False when it was asked to stop; nothing is under the outputs' names then. Collective.
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

}  // namespace fsdp::detail
