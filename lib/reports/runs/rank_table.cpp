#include "lib/reports/runs/rank_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "lib/base/text/text_format.hpp"

namespace fsdp {
namespace {

constexpr const char* kRankLabel = "ranks     ";
constexpr std::size_t kRankLabelWidth = 10;
constexpr double kLongestSilence_seconds = 30;

std::string percent_text(double x) { return fmt::format("{:.0f} %", 100 * x); }
std::string watts_text(double x) { return fmt::format("{:.0f} W", x); }
std::string celsius_text(double x) { return fmt::format("{:.0f} C", x); }
std::string cores_text(double x) { return fmt::format("{:.2f}", x); }

struct RankColumn {
  const char* title;
  double RankStatus::*field;
  std::string (*text)(double);
};
/// The most important first.
constexpr std::array kRankColumns{RankColumn{"waits", &RankStatus::wait_share, percent_text},
                                  RankColumn{"gpu", &RankStatus::gpu_use, percent_text},
                                  RankColumn{"memory", &RankStatus::gpu_bytes, format_bytes},
                                  RankColumn{"peak", &RankStatus::peak_gpu_bytes, format_bytes},
                                  RankColumn{"card", &RankStatus::card_bytes, format_bytes},
                                  RankColumn{"power", &RankStatus::watts, watts_text},
                                  RankColumn{"temp", &RankStatus::celsius, celsius_text},
                                  RankColumn{"cores", &RankStatus::cores, cores_text},
                                  RankColumn{"resident", &RankStatus::resident_bytes, format_bytes},
                                  RankColumn{"peak", &RankStatus::peak_resident_bytes, format_bytes}};

/// A column of cells, the title first.
using Cells = std::vector<std::string>;

/// A rank, and the node's file that tells of it.
struct RankPlace {
  const RankStatus* status;
  const NodeStatus* node;
  bool is_silent() const { return node->age_seconds > std::max(kLongestSilence_seconds, 3 * node->every_seconds); }
};

std::string cell_text(const RankColumn& column, double value) {
  return std::isfinite(value) && std::abs(value) < 1e18 ? column.text(value) : "-";
}

/// \return the three cells of a table without a line for each rank
Cells extremes(const RankColumn& column, std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  std::sort(values.begin(), values.end());
  return {column.title, cell_text(column, values.front()), cell_text(column, values[values.size() / 2]),
          cell_text(column, values.back())};
}

std::vector<Cells> cells_of(const std::vector<RankPlace>& ranks, bool is_whole) {
  std::vector<Cells> all;
  Cells numbers{"rank", "lowest", "median", "highest"};
  if (is_whole) {
    numbers = {"rank"};
    for (const auto& rank : ranks) numbers.push_back(fmt::format("{:.0f}", rank.status->rank));
  }
  all.push_back(numbers);
  for (const auto& column : kRankColumns) {
    std::vector<double> values;
    for (const auto& rank : ranks) values.push_back(rank.status->*column.field);
    if (std::none_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); })) continue;
    Cells cells{column.title};
    for (const double value : values) cells.push_back(cell_text(column, value));
    all.push_back(is_whole ? cells : extremes(column, values));
  }
  const bool has_silent = std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.is_silent(); });
  std::set<std::string> hosts;
  for (const auto& rank : ranks) hosts.insert(rank.node->host);
  Cells heard{"heard"}, places{"node"};
  for (const auto& rank : ranks) {
    heard.push_back(format_duration(rank.node->age_seconds) + " ago");
    places.push_back(printable(rank.node->host));
  }
  if (has_silent && is_whole) all.insert(all.begin() + 1, heard);
  if (hosts.size() > 1 && is_whole) all.push_back(places);
  return all;
}

}  // namespace

std::vector<std::string> rank_table(const std::vector<NodeStatus>& nodes, int width, int rows) {
  std::vector<RankPlace> ranks;
  for (const auto& node : nodes) {
    for (const auto& status : node.ranks) ranks.push_back({&status, &node});
  }
  const bool is_whole = ranks.size() < static_cast<std::size_t>(std::max(rows, 0));
  constexpr int kFewestRows = 4;
  if (ranks.empty() || (!is_whole && rows < kFewestRows)) return {};
  const auto cells = cells_of(ranks, is_whole);
  std::vector<std::string> lines(cells.front().size(), std::string(kRankLabelWidth, ' '));
  lines.front() = kRankLabel;
  auto room = std::max(width, 0) - static_cast<int>(kRankLabelWidth);
  bool is_first = true;
  for (const auto& column : cells) {
    std::size_t widest = 0;
    for (const auto& cell : column) widest = std::max(widest, cell.size());
    const std::size_t gap = is_first ? 0 : 2;
    room -= static_cast<int>(widest + gap);
    if (room < 0) break;
    is_first = false;
    for (std::size_t i = 0; i < lines.size(); ++i)
      lines[i] += std::string(gap + widest - column[i].size(), ' ') + column[i];
  }
  if (is_whole) return lines;
  const auto silent = std::count_if(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.is_silent(); });
  lines.front() += fmt::format("   of {} ranks", ranks.size());
  if (silent > 0) lines.front() += fmt::format(", {} of them silent", silent);
  return lines;
}

}  // namespace fsdp
