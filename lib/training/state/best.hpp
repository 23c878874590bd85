#pragma once
// checkpoints/best: a symlink to the checkpoint that was best in a validation.
#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/training/record/run_manifest.hpp"

namespace fsdp {

/// The step of the checkpoint that CHECKPOINTS/best leads to; -1: there is none, or it is none of ours.
std::int64_t best_link(const std::filesystem::path& checkpoints);

/// Whether the checkpoint of known.best_step says of itself that it is the best, with this value of this metric:
/// another run's, or another one of that step, does not.
bool holds_best(const std::filesystem::path& checkpoints, const ValidationState& known);

/// Replaces the link by rename. \throws IoError, also where something else has its name
void point_best_to(const std::filesystem::path& checkpoints, std::int64_t step);

/// Keeps the checkpoint that was saved for `best` alone as a regular one. Needed when another metric decides from now
/// on, since values of different metrics do not compare. \param step  -1 if there is none. Silently does nothing if the
/// checkpoint cannot be kept.
void keep_as_regular(const std::filesystem::path& checkpoints, std::int64_t step);

struct SettledBest {
  double value = ValidationState().best_value;
  std::int64_t step = -1;  ///< -1: there is none
  std::string remark;      ///< what became of the one that there was, what could not be done; empty: nothing
};

/// Restores the best of a resumed run: what it knew as the best when `validation` was saved with its state after
/// `step`. `best` points to that, or is removed where it leads to what its state does not know: that is not of the
/// run's past, but of one that had its folder, or its steps, before it. Checkpoints themselves stay, as regular ones
/// where they were saved for `best` alone. A link that cannot be made leaves the rest true: see `remark`.
SettledBest reconcile_best(const std::filesystem::path& checkpoints, const ValidationState& validation,
                           std::int64_t step);

}  // namespace fsdp
