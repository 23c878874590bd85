#pragma once
// Live view of runs in a terminal: progress, losses, speed and memory.
#include <limits>
#include <string>
#include <vector>

#include "lib/reports/runs/run_summary.hpp"

namespace fsdp {

/// A few lines about a run. \param width  maximum characters per line
/// \param rank_rows  most lines about its ranks, see rank_table()
std::string run_view(const RunSummary& run, int width, int rank_rows = std::numeric_limits<int>::max());

/// Shows the runs of `paths` on stdout. On a terminal, the view is refreshed every two seconds (less often if reading
/// the runs takes long) until no run is active; otherwise it is printed once.
/// \param html_file  this page is renewed every ten seconds until no run is active, without a terminal, too; "": none
/// \throws MissingInput, IoError
void watch_runs(const std::vector<std::string>& paths, const std::string& html_file);

namespace detail {
/// Renders `values` as at most `width` block characters, each the mean of a stretch; stretches that are not finite are
/// blanks.
std::string sparkline(const std::vector<double>& values, int width);

/// Renders at most `rows` - 1 lines, so that the terminal does not scroll. Active runs come first; further runs get one
/// line each, and the remaining ones are only counted.
std::string screen_of(const std::vector<RunSummary>& runs, int width, int rows);
}  // namespace detail

}  // namespace fsdp
