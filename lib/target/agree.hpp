#pragma once
// Errors that every rank of a group gets.
#include <exception>
#include <functional>

#include "lib/mpi/process_group.hpp"

namespace fsdp::detail {

/// Collective. Runs `action` here; when it throws on any rank, every rank throws: the error of the lowest rank that has
/// one, but one that says "stopped" only when no rank has another. A lone rank's own exception passes unchanged.
void run_agreed(ProcessGroup& group, const std::function<void()>& action);

}  // namespace fsdp::detail
