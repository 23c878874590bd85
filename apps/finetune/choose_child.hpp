#pragma once
// The pass over training data at the start of Child-Tuning-D, which estimates the Fisher information.
#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "apps/finetune/run_setup.hpp"

namespace fsdp::detail {

/// Measures the remaining batches of the Fisher pass and chooses the child network. Does nothing when no child is to be
/// chosen. Collective.
/// \param stop_wanted  asked on every rank before each micro-batch
/// \param after_batch  called after each global batch, when the state can be saved
/// \return false when stopped before all batches were measured
bool choose_child(const RunContext& context, const std::function<bool()>& stop_wanted,
                  const std::function<void()>& after_batch, nlohmann::json& report);

}  // namespace fsdp::detail
