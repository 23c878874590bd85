#pragma once
// The pass over the data that Child-Tuning's D begins with.
#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "apps/finetune/run_context.hpp"

namespace fsdp::detail {

/// Measures what is left to measure and chooses the child; does nothing where none is to be chosen. Collective.
/// \param stop_wanted  asked on every rank before each micro-batch
/// \param after_batch  called after each global batch: the state is one to save
/// \return false: asked to stop before all was measured
bool choose_child(const RunContext& context, const std::function<bool()>& stop_wanted,
                  const std::function<void()>& after_batch, nlohmann::json& report);

}  // namespace fsdp::detail
