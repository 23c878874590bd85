#pragma once
// A run as a terminal shows it: how far it is, its losses, its speed and memory.
#include <string>
#include <vector>

#include "lib/reports/runs/run_summary.hpp"

namespace fsdp {

/// A few lines. \param width  characters that a line may have
std::string run_view(const RunSummary& run, int width);

/// Shows the runs of `paths` on stdout: on a terminal anew every two seconds (less often where reading them takes
/// longer) until none of them goes on any more (or somebody ends it), elsewhere once. \throws MissingInput, IoError
void watch_runs(const std::vector<std::string>& paths);

namespace detail {
/// Means of stretches of `values` as blocks from the lowest to the highest, at most `width`; not finite ones are
/// blanks.
std::string sparkline(const std::vector<double>& values, int width);

/// At most `rows` - 1 lines, so that the terminal does not scroll: runs that go on come first; those that have no room
/// get a line each, then are only counted.
std::string screen_of(const std::vector<RunSummary>& runs, int width, int rows);
}  // namespace detail

}  // namespace fsdp
