#pragma once
// --final best: the weights of checkpoints/best, for all that is written at the end.
#include <filesystem>
#include <optional>

#include "apps/finetune/run_context.hpp"

namespace fsdp::detail {

/// Puts them in place of the last ones, where they are others; says which. Collective.
/// \return the checkpoint; nothing: there is none, and the last weights stay
/// \throws what open_checkpoint() and load_checkpoint() throw
std::optional<std::filesystem::path> load_best(const RunContext& context);

}  // namespace fsdp::detail
