#include "lib/training/state/best.hpp"

#include <fmt/format.h>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "lib/training/state/checkpoint_names.hpp"

namespace fsdp {
namespace {

constexpr const char* kBest = "best";

/// Reads what the checkpoint of this step records of the validations before it; empty if it is missing or damaged.
ValidationState validation_of(const std::filesystem::path& checkpoints, std::int64_t step) {
  std::error_code error;
  const auto path = checkpoints / checkpoint_name(step);
  if (step < 0 || !std::filesystem::exists(path / "run.json", error)) return {};
  try {
    return read_run_manifest(path).state.validation;
  } catch (const std::exception&) {
    return {};
  }
}

void add_remark(SettledBest& best, const std::string& remark) {
  best.remark += (best.remark.empty() ? "" : "; ") + remark;
}

/// Another best of this run says nothing about this one: it is not to go when there is one.
void make_regular(const std::filesystem::path& checkpoint, SettledBest& best) {
  try {
    auto manifest = read_run_manifest(checkpoint);
    if (!manifest.passing) return;
    manifest.passing = false;
    write_run_manifest(checkpoint, manifest);
  } catch (const IoError& error) {
    add_remark(best, error.what());
  } catch (const std::exception&) {
    // Damaged: such a one is never removed.
  }
}

void move_link(const std::filesystem::path& checkpoints, std::int64_t step) {
  if (step >= 0) return point_best_to(checkpoints, step);
  std::error_code error;
  std::filesystem::remove(checkpoints / kBest, error);
  if (error) throw IoError(fmt::format("{}: cannot be removed: {}", (checkpoints / kBest).string(), error.message()));
}

}  // namespace

std::int64_t best_link(const std::filesystem::path& checkpoints) {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(checkpoints / kBest, error).string();
  return error ? -1 : step_of_checkpoint(target);
}

bool holds_best(const std::filesystem::path& checkpoints, const ValidationState& known) {
  if (known.best_step < 0) return false;
  const auto says = validation_of(checkpoints, known.best_step);
  return says.best_step == known.best_step && says.best_value == known.best_value && measure_alike(says, known);
}

void keep_as_regular(const std::filesystem::path& checkpoints, std::int64_t step) {
  SettledBest unheard;
  if (step >= 0) make_regular(checkpoints / checkpoint_name(step), unheard);
}

void point_best_to(const std::filesystem::path& checkpoints, std::int64_t step) {
  std::error_code error;
  const auto what = std::filesystem::symlink_status(checkpoints / kBest, error);
  if (std::filesystem::exists(what) && best_link(checkpoints) < 0)
    throw IoError((checkpoints / kBest).string() + ": is not the link to the best checkpoint, so it is left as it is");
  replace_symlink(checkpoint_name(step), checkpoints / kBest);
  sync_directory(checkpoints);
}

SettledBest reconcile_best(const std::filesystem::path& checkpoints, const ValidationState& validation,
                           std::int64_t step) {
  const auto linked = best_link(checkpoints);
  SettledBest best;
  if (holds_best(checkpoints, validation)) {
    best.value = validation.best_value;
    best.step = validation.best_step;
  }
  if (best.step < 0 && validation.best_step >= 0) {
    add_remark(best, fmt::format("the best checkpoint until now, of step {} with a {} of {:.4f}, is not in {}: the "
                                 "best from here on is kept",
                                 validation.best_step, validation.metric, validation.best_value, checkpoints.string()));
  }
  try {
    if (best.step != linked) move_link(checkpoints, best.step);
  } catch (const std::exception& error) {
    add_remark(best, error.what());
  }
  try {
    for (const auto other : checkpoint_steps(checkpoints)) {
      const bool is_left = best.step < 0 && other == linked;
      if (other > step || is_left) make_regular(checkpoints / checkpoint_name(other), best);
    }
  } catch (const std::exception& error) {
    add_remark(best, error.what());
  }
  return best;
}

}  // namespace fsdp
