#pragma once
// Agreement between the ranks of a group: conditions, problems and errors that every rank learns. All functions are
// collective.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// True on every rank when `local` is true on any rank.
bool any_rank(ProcessGroup& group, bool local);

/// True on every rank when `local` is true on all ranks.
bool every_rank(ProcessGroup& group, bool local);

/// A problem and the rank that has it.
struct RankProblem {
  int rank = 0;
  std::string text;
};

/// Returns on every rank the problem of the lowest rank that has one.
/// \param local  the problem of this rank; empty when it has none
std::optional<RankProblem> first_problem(ProcessGroup& group, const std::string& local);

/// A property that all ranks of a job must have alike.
struct RankTrait {
  std::string what;   ///< "the program"
  std::string local;  ///< this rank's: "fsdp 1.0.0"
};

/// Requires that all ranks have the same traits.
/// \throws RequestError on every rank if a trait differs: it names the first one that does, the two ranks, their hosts,
///         and what each of them has
void require_equal_ranks(ProcessGroup& group, const std::vector<RankTrait>& traits);

/// Runs `action` on every rank. When it throws on any rank, every rank throws the error of the lowest failed rank; a
/// Stopped error is thrown only when no rank has another error. In a group of one, the exception propagates unchanged.
void run_agreed(ProcessGroup& group, const std::function<void()>& action);

/// Runs `action` on rank 0 and returns its result on every rank. Errors are thrown on every rank, as by run_agreed().
std::string text_of_root(ProcessGroup& group, const std::function<std::string()>& action);

}  // namespace fsdp
