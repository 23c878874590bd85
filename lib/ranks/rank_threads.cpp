#include "lib/ranks/rank_threads.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "lib/base/process/scheduler.hpp"
#include "lib/ranks/texts_of_ranks.hpp"

namespace fsdp {
namespace detail {

int ranks_sharing(const std::vector<std::vector<int>>& cores, std::size_t self) {
  return static_cast<int>(std::ranges::count_if(
      cores, [&](const auto& others) { return std::ranges::find_first_of(others, cores[self]) != others.end(); }));
}

}  // namespace detail

ThreadCount threads_on_node(ProcessGroup& node) {
  const auto own = allowed_cores();
  std::vector<std::vector<int>> cores;
  for (const auto& text : texts_of_ranks(node, fmt::format("{}", fmt::join(own, " ")))) {
    std::istringstream numbers(text);
    auto& rank = cores.emplace_back();
    for (int core = 0; numbers >> core;) rank.push_back(core);
  }
  const auto bound = static_cast<int>(own.size());
  // All ranks of the node share the CPU quota of a control group, whatever they are bound to.
  const bool has_quota = usable_cores() < bound;
  auto count = threads_of_rank(
      has_quota ? node.size() : std::max(1, detail::ranks_sharing(cores, static_cast<std::size_t>(node.rank()))));
  const auto free = static_cast<int>(allowed_cores(::getppid()).size());  // of the launcher
  if (count.warning.empty() && launcher_kind() == LauncherKind::open_mpi && bound * node.size() * 2 <= free) {
    count.warning = fmt::format(
        "mpirun bound this rank to {} of {} cores, and {} on this node would leave most of them idle: give mpirun "
        "--bind-to none, or --map-by ppr:{}:node:PE={}",
        bound, free, node.size() == 1 ? "one rank" : fmt::format("{} ranks", node.size()), node.size(),
        free / node.size());
  }
  return count;
}

}  // namespace fsdp
