#pragma once
// checkpoints/best: a symlink to the checkpoint of the lowest validation loss.
#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/config/run_manifest.hpp"

namespace fsdp {

/// The step of the checkpoint that CHECKPOINTS/best leads to; -1: there is none, or it is none of ours.
std::int64_t best_link(const std::filesystem::path& checkpoints);

/// Replaces the link by rename. \throws IoError, also where something else has its name
void point_best_to(const std::filesystem::path& checkpoints, std::int64_t step);

struct SettledBest {
  double loss = ValidationState().best_loss;
  std::int64_t step = -1;  ///< -1: there is none
  std::string remark;      ///< what became of the one that there was; empty: nothing
};

/// Of a run that goes on: what it knew as the best when `validation` was saved with its state after `step`. `best`
/// points to that, or is removed where it leads to what the run has not come to: checkpoints themselves stay.
/// \throws IoError
SettledBest settle_best(const std::filesystem::path& checkpoints, const ValidationState& validation, std::int64_t step);

}  // namespace fsdp
