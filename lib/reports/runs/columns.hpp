#pragma once
// The table of runs: what a row has in each column.
#include <functional>
#include <string>
#include <vector>

#include "lib/reports/runs/run_summary.hpp"

namespace fsdp::detail {

constexpr std::size_t kMostSettings = 6;  // columns; a table of more is read by nobody
constexpr const char* kNothing = "-";

struct Column {
  std::string title;
  std::function<std::string(const RunSummary&)> cell;
  std::function<double(const RunSummary&)> number;  ///< what the cell shows, where all of it are figures; else empty
  bool high_is_good = false;
};

/// What matters most first: the state and losses, then what was tried, then speed and memory. Those in which no run has
/// anything are left out.
std::vector<Column> columns_of(const RunComparison& comparison);

/// The loss of the set that --keep-best names, else of the first.
ValidationSummary deciding_loss(const RunSummary& run);

/// How far the prediction of memory was off, as a share.
double prediction_error(const RunFiles& run);

}  // namespace fsdp::detail
