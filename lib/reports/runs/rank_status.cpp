#include "lib/reports/runs/rank_status.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
constexpr const char* kStatusFormat = "fsdp-status";
constexpr std::uint64_t kLargestStatus_bytes = 16 << 20;
constexpr std::string_view kStatusPrefix = "ranks-";

double number_or_unknown(const Json& json, std::string_view key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : RankStatus::kUnknown;
}

/// \return without ranks where the file is no record
NodeStatus read_status_file(const fs::path& path) {
  NodeStatus node;
  try {
    const auto file = File::open_read_nofollow(path);  // opened first, so that NFS asks the server for its time
    const auto json = parse_json_or_discard(read_text(file, kLargestStatus_bytes), path.string());
    std::error_code error;
    const auto written = fs::last_write_time(path, error);
    if (error || !json.is_object() || json.value("format", Json()) != kStatusFormat) return {};
    node.age_seconds = std::max(0.0, std::chrono::duration<double>(fs::file_time_type::clock::now() - written).count());
    if (const auto host = json.find("host"); host != json.end() && host->is_string()) node.host = *host;
    node.every_seconds = number_or_unknown(json, "every_seconds");
    const auto ranks = json.find("ranks");
    if (ranks == json.end() || !ranks->is_array()) return {};
    for (const auto& one : *ranks) {
      if (!one.is_object()) continue;
      RankStatus status;
      for (const auto& [key, field] : kRankStatusFields) status.*field = number_or_unknown(one, key);
      if (std::isfinite(status.rank)) node.ranks.push_back(status);
      if (const auto flight = one.find("flight"); flight != one.end()) {
        if (auto known = flight_from_json(*flight)) node.flights.push_back(std::move(*known));
      }
    }
  } catch (const std::exception&) {
    return {};
  }
  return node;
}

}  // namespace

std::string status_file_name(int first_rank) { return fmt::format("{}{}.json", kStatusPrefix, first_rank); }

std::string to_json_text(const NodeStatus& node) {
  auto ranks = Json::array();
  for (const auto& status : node.ranks) {
    auto& one = ranks.emplace_back(Json::object());
    for (const auto& [key, field] : kRankStatusFields) {
      const double value = status.*field;
      if (!std::isfinite(value)) continue;
      // Bytes and steps as whole numbers, the others with as many digits as mean something.
      auto& place = one[std::string(key)];
      if (value == std::floor(value) && std::abs(value) < 1e15) {
        place = static_cast<std::int64_t>(value);
      } else {
        place = std::round(value * 1000) / 1000;
      }
    }
    const auto flight = std::find_if(node.flights.begin(), node.flights.end(),
                                     [&](const auto& known) { return known.rank == static_cast<int>(status.rank); });
    if (flight != node.flights.end()) one["flight"] = flight_to_json(*flight);
  }
  const Json json{
      {"format", kStatusFormat}, {"host", node.host}, {"every_seconds", node.every_seconds}, {"ranks", ranks}};
  return printable_json(json) + "\n";
}

void remove_node_status(const fs::path& run_directory) {
  const auto folder = run_directory / kStatusFolder;
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const auto name = entry->path().filename().string();
    // With a dot in front: what a job was writing when it was killed.
    if (name.starts_with(kStatusPrefix) || name.starts_with("." + std::string(kStatusPrefix)))
      files.push_back(entry->path());
  }
  for (const auto& file : files) fs::remove(file, error);
  if (!files.empty()) fs::remove(folder, error);
}

std::vector<NodeStatus> read_node_status(const fs::path& run_directory) {
  std::vector<NodeStatus> nodes;
  std::error_code error;
  for (fs::directory_iterator entry(run_directory / kStatusFolder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(kStatusPrefix)) continue;
    if (auto node = read_status_file(entry->path()); !node.ranks.empty()) nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const auto& a, const auto& b) { return a.ranks.front().rank < b.ranks.front().rank; });
  return nodes;
}

}  // namespace fsdp
