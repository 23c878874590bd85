#pragma once
// What the ranks of a group know together: whether any has failed, who speaks, an error that every rank gets. All of it
// is collective.
#include <functional>
#include <optional>
#include <string>

#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// True where `mine` is true on any rank.
bool any_rank(ProcessGroup& group, bool mine);

/// True where `mine` is true on every rank.
bool every_rank(ProcessGroup& group, bool mine);

/// What a rank says is wrong with it.
struct RankProblem {
  int rank = 0;
  std::string text;
};

/// The problem of the lowest rank that has one, on every rank. \param mine  empty: none here
std::optional<RankProblem> first_problem(ProcessGroup& group, const std::string& mine);

/// Runs `action` here; when it throws on any rank, every rank throws: the error of the lowest rank that has one, but
/// one that says "stopped" only when no rank has another. A lone rank's own exception passes unchanged.
void run_agreed(ProcessGroup& group, const std::function<void()>& action);

/// What `action` returns on rank 0, the only one that runs it; its error is every rank's, as run_agreed().
std::string text_of_root(ProcessGroup& group, const std::function<std::string()>& action);

}  // namespace fsdp
