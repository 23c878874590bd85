#include "lib/reports/runs/job_flights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "lib/base/files/file.hpp"
#include "lib/base/process/answer_within.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/reports/runs/rank_status.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

double first_time(std::span<const RankFlight> flights) {
  double first = std::numeric_limits<double>::infinity();
  for (const auto& flight : flights) {
    for (const auto* notes : {&flight.open, &flight.ended}) {
      for (const auto& note : *notes) first = std::min(first, note.begin);
    }
  }
  return std::isfinite(first) ? first : 0;
}

void add_events(Json& events, const RankFlight& flight, double origin) {
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", flight.rank},
                    {"args", {{"name", fmt::format("rank {} on {}", flight.rank, flight.host)}}}});
  const auto add = [&](const FlightNote& note) {
    const auto kind = kFlightKinds[static_cast<std::size_t>(note.kind)];
    const auto end = note.end > 0 ? note.end : flight.seen;
    Json args{{"step", note.step}, {"micro_batch", note.micro_batch}};
    if (note.is_collective()) args.update({{"group", note.group}, {"round", note.round}, {"bytes", note.bytes}});
    if (note.wait > 0) args["waited_seconds"] = std::round(1e6 * (end - note.wait)) / 1e6;
    if (note.end == 0) args["goes_on"] = true;
    const auto name = note.kind == FlightKind::work ? note.name : fmt::format("{} {}", kind, note.name);
    events.push_back({{"name", name},
                      {"cat", kind},
                      {"ph", "X"},
                      {"pid", flight.rank},
                      {"tid", note.kind == FlightKind::work ? "host" : "collectives"},
                      {"ts", std::round(1e6 * (note.begin - origin))},
                      {"dur", std::round(1e6 * (end - note.begin))},
                      {"args", args}});
  };
  for (const auto& note : flight.ended) add(note);
  for (const auto& note : flight.open) add(note);
}

std::int64_t last_step(std::span<const RankFlight> flights) {
  std::int64_t step = 0;
  for (const auto& flight : flights) {
    for (const auto* notes : {&flight.open, &flight.ended}) {
      for (const auto& note : *notes) step = std::max(step, note.step);
    }
  }
  return step;
}

StuckFile write_whole(const fs::path& run_directory, const std::string& name, const std::string& text) {
  StuckFile stuck{.path = run_directory / name, .is_ours = false, .problem = ""};
  const auto temporary = run_directory / ("." + name);
  const auto is_older = [](const fs::path& path, std::chrono::seconds age) {
    std::error_code error;
    const auto written = fs::last_write_time(path, error);
    return !error && fs::file_time_type::clock::now() - written > age;
  };
  std::error_code error;
  if (fs::exists(stuck.path, error) && !is_older(stuck.path, std::chrono::seconds(10))) return stuck;
  if (is_older(temporary, std::chrono::seconds(60))) fs::remove(temporary, error);  // of a rank that was killed
  try {
    auto file = File::create_new(temporary);
    stuck.is_ours = true;
    file.write(text);
    file.close();
    fs::rename(temporary, stuck.path, error);
    if (error) stuck.problem = fmt::format("{}: cannot be written: {}", stuck.path.string(), error.message());
  } catch (const IoError& failure) {
    if (stuck.is_ours) fs::remove(temporary, error);
    const bool is_begun = !stuck.is_ours && (fs::exists(temporary, error) || fs::exists(stuck.path, error));
    if (!is_begun) stuck.problem = failure.what();
    // A rank that ends the job now would end the one that writes.
    for (int i = 0; is_begun && fs::exists(temporary, error) && i < 300; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return stuck;
}

}  // namespace

std::vector<RankFlight> flights_of_run(const fs::path& run_directory, std::size_t most_ended) {
  std::map<int, RankFlight> by_rank;
  const auto written = answer_within(kLookAtFolder, [run_directory] { return read_node_status(run_directory); });
  for (const auto& node : written.value_or(std::vector<NodeStatus>())) {
    for (const auto& flight : node.flights) {
      auto& rank = by_rank[flight.rank] = flight;
      rank.every_seconds = node.every_seconds;
    }
  }
  for (auto& flight : HostFlights(run_directory).read(most_ended)) by_rank[flight.rank] = std::move(flight);
  std::vector<RankFlight> flights;
  for (auto& [rank, flight] : by_rank) flights.push_back(std::move(flight));
  return flights;
}

std::string stuck_text(const Verdict& verdict, std::span<const RankFlight> flights) {
  Json json{{"format", "fsdp-stuck"},
            {"why", verdict.text},
            {"is_stuck", verdict.is_stuck},
            {"ranks", verdict.ranks},
            {"waiting", verdict.waiting}};
  auto& list = json["flights"] = Json::array();
  auto& events = json["traceEvents"] = Json::array();
  const auto origin = first_time(flights);
  for (const auto& flight : flights) {
    auto shorter = flight;
    shorter.ended.clear();  // they are in the trace
    list.push_back(flight_to_json(shorter));
    add_events(events, flight, origin);
  }
  return printable_json(json) + "\n";
}

StuckFile write_stuck_file(const fs::path& run_directory, const Verdict& verdict, std::span<const RankFlight> flights) {
  const auto name = fmt::format("stuck-{}.json", last_step(flights));
  const auto written = answer_within(3 * kLookAtFolder, [run_directory, name, text = stuck_text(verdict, flights)] {
    return write_whole(run_directory, name, text);
  });
  if (written) return *written;
  const auto path = run_directory / name;
  return {.path = path, .is_ours = false, .problem = path.string() + ": the file system does not answer"};
}

}  // namespace fsdp
