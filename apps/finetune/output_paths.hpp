#pragma once
// Whether --save-final-full, --save-final-hf and --save-final-adapter may be written where they are to go: known before
// hours of training.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

struct FinalOutputs {
  std::filesystem::path full;           ///< file; empty: none
  std::filesystem::path hf;             ///< directory, without a slash at its end; empty: none
  std::filesystem::path adapter;        ///< directory, of which the adapter's files alone are replaced; empty: none
  std::filesystem::path run_directory;  ///< need not exist yet
  bool continues = false;               ///< the run goes on from a checkpoint: what it wrote before is its own
  bool overwrite = false;               ///< what other runs wrote may be replaced, too
  /// Outputs that an earlier job of this run named, or that it goes on from: they are its own.
  std::vector<std::filesystem::path> own;
  /// Files and directories that the run reads, each with the option that names it.
  std::vector<std::pair<std::string, std::filesystem::path>> inputs;
};

/// Nothing of the run's inputs, of its own files and of what others put there may be replaced: a directory must be new,
/// empty or an earlier export of this run. What lies in the run's folder is this run's. Makes the folders above the
/// outputs. For one rank only.
/// \throws UsageError naming option, path and what lies there; IoError when it cannot be written
void check_final_outputs(const FinalOutputs& outputs);

}  // namespace fsdp
