#include "lib/checkpoint/best.hpp"

#include <fmt/format.h>

#include <charconv>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/checkpoint/save.hpp"

namespace fsdp {
namespace {

constexpr const char* kBest = "best";

bool is_there(const std::filesystem::path& checkpoints, std::int64_t step) {
  std::error_code error;
  return step >= 0 && std::filesystem::exists(checkpoints / checkpoint_name(step) / "run.json", error);
}

/// What the checkpoint that the link leads to says of itself, where it is of the run's past.
SettledBest best_of_link(const std::filesystem::path& checkpoints, std::int64_t linked, std::int64_t step) {
  SettledBest best;
  if (linked > step || !is_there(checkpoints, linked)) return best;
  try {
    const auto of_link = read_run_manifest(checkpoints / checkpoint_name(linked)).state.validation;
    if (of_link.best_step != linked) return best;
    best.loss = of_link.best_loss;
    best.step = linked;
  } catch (const std::exception&) {
    // Damaged: there is none.
  }
  return best;
}

}  // namespace

std::int64_t best_link(const std::filesystem::path& checkpoints) {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(checkpoints / kBest, error).string();
  std::int64_t step = -1;
  if (error || !target.starts_with("step-")) return -1;
  std::from_chars(target.data() + 5, target.data() + target.size(), step);
  return target == checkpoint_name(step) ? step : -1;
}

void point_best_to(const std::filesystem::path& checkpoints, std::int64_t step) {
  std::error_code error;
  const auto what = std::filesystem::symlink_status(checkpoints / kBest, error);
  if (std::filesystem::exists(what) && best_link(checkpoints) < 0)
    throw IoError((checkpoints / kBest).string() + ": is not the link of --keep-best, so it is left as it is");
  replace_symlink(checkpoint_name(step), checkpoints / kBest);
  sync_directory(checkpoints);
}

SettledBest settle_best(const std::filesystem::path& checkpoints, const ValidationState& validation,
                        std::int64_t step) {
  const auto linked = best_link(checkpoints);
  SettledBest best;
  if (is_there(checkpoints, validation.best_step)) {
    best.loss = validation.best_loss;
    best.step = validation.best_step;
  } else {
    best = best_of_link(checkpoints, linked, step);
  }
  if (best.step < 0 && validation.best_step >= 0) {
    best.remark = fmt::format(
        "the best checkpoint until now, of step {} with a loss of {:.4f}, is not in {}: the best "
        "from here on is kept",
        validation.best_step, validation.best_loss, checkpoints.string());
  }
  if (best.step == linked) return best;
  if (best.step >= 0) {
    point_best_to(checkpoints, best.step);
  } else {
    std::error_code error;
    std::filesystem::remove(checkpoints / kBest, error);
    if (error) throw IoError(fmt::format("{}: cannot be removed: {}", (checkpoints / kBest).string(), error.message()));
  }
  return best;
}

}  // namespace fsdp
