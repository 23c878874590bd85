#include "lib/flight/rank_flight.hpp"
#include "lib/base/process/answer_within.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lib/base/files/descriptor.hpp"
#include "lib/base/process/process_identity.hpp"
#include "lib/base/process/usable_resources.hpp"
#include "lib/base/types/error.hpp"
#include "lib/flight/flight_recorder.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::json;

template <std::size_t N>
std::string text_of(const std::array<char, N>& bytes) {
  return {bytes.data(), ::strnlen(bytes.data(), N)};
}

class Reader {
 public:
  explicit Reader(const FlightMap& map) : map_(map) {}

  FlightNote note(const FlightEvent& event) const {
    FlightNote note;
    note.kind = static_cast<std::size_t>(event.kind) < kFlightKinds.size() ? event.kind : FlightKind::work;
    if (event.name < FlightMap::kNames) note.name = text_of(map_.names[event.name]);
    note.group = event.group;
    note.bytes = event.bytes;
    note.step = event.step;
    note.micro_batch = event.micro_batch;
    note.round = event.round;
    note.peer = event.peer;
    note.begin = seconds(event.begin_ns);
    note.wait = seconds(event.wait_ns);
    note.end = seconds(event.end_ns);
    return note;
  }
  double seconds(std::int64_t ns) const { return ns == 0 ? 0 : 1e-9 * static_cast<double>(ns + map_.clock_offset_ns); }

  std::vector<FlightNote> open() const {
    std::vector<FlightEvent> events;
    for (const auto& slot : map_.open) {
      if (const auto event = slot.read(); event.number != 0) events.push_back(event);
    }
    return in_order(std::move(events));
  }
  std::vector<FlightNote> ended(std::size_t most) const {
    const auto count = map_.num_ended.load(std::memory_order_acquire);
    const auto wanted = std::min<std::uint64_t>({most, count, FlightMap::kEvents});
    std::vector<FlightEvent> events;
    for (auto i = count - wanted; i < count; ++i) {
      if (const auto event = map_.ended[i % FlightMap::kEvents].read(); event.number != 0) events.push_back(event);
    }
    return in_order(std::move(events));
  }

 private:
  std::vector<FlightNote> in_order(std::vector<FlightEvent> events) const {
    std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
    std::vector<FlightNote> notes;
    for (const auto& event : events) notes.push_back(note(event));
    return notes;
  }

  const FlightMap& map_;
};

/// \param process  that the record is of
void look_at_process(RankFlight& flight, const ProcessIdentity& process, const FlightMap& map) {
  if (!process.is_comparable(ProcessIdentity::own())) return;
  flight.state = process.state();
  const auto kills = memory_kills(text_of(map.memory_events));
  flight.was_killed_for_memory = flight.has_ended() && map.killed_for_memory >= 0 && kills > map.killed_for_memory;
}

double rounded(double seconds) { return std::round(seconds * 1e6) / 1e6; }

Json note_to_json(const FlightNote& note) {
  Json json{{"kind", kFlightKinds[static_cast<std::size_t>(note.kind)]}, {"begin", rounded(note.begin)}};
  const auto add = [&](const char* key, const auto& value, const auto& none) {
    if (value != none) json[key] = value;
  };
  add("name", note.name, std::string());
  add("group", note.group, 0);
  add("bytes", note.bytes, 0u);
  add("step", note.step, 0);
  add("micro_batch", note.micro_batch, 0);
  add("round", note.round, 0u);
  add("peer", note.peer, -1);
  add("wait", rounded(note.wait), 0.0);
  add("end", rounded(note.end), 0.0);
  return json;
}

FlightNote note_from_json(const Json& json) {
  FlightNote note;
  const auto kind = std::find(kFlightKinds.begin(), kFlightKinds.end(), json.at("kind").get<std::string>());
  if (kind == kFlightKinds.end()) throw FormatError("a flight record has an unknown kind of event");
  note.kind = static_cast<FlightKind>(kind - kFlightKinds.begin());
  note.begin = json.at("begin");
  note.name = json.value("name", note.name);
  note.group = json.value("group", note.group);
  note.bytes = json.value("bytes", note.bytes);
  note.step = json.value("step", note.step);
  note.micro_batch = json.value("micro_batch", note.micro_batch);
  note.round = json.value("round", note.round);
  note.peer = json.value("peer", note.peer);
  note.wait = json.value("wait", note.wait);
  note.end = json.value("end", note.end);
  return note;
}

}  // namespace

const FlightNote* RankFlight::waits_for() const {
  const FlightNote* first = nullptr;
  for (const auto& note : open) {
    if (note.is_waited_for() && (first == nullptr || note.wait < first->wait)) first = &note;
  }
  return first;
}

const FlightNote* RankFlight::works_on() const {
  const auto last =
      std::find_if(open.rbegin(), open.rend(), [](const auto& note) { return note.kind == FlightKind::work; });
  return last == open.rend() ? nullptr : &*last;
}

RankFlight read_flight(const FlightMap& map, std::size_t most_ended) {
  const Reader reader(map);
  RankFlight flight;
  flight.rank = map.rank;
  flight.run = text_of(map.run);
  flight.ranks = map.ranks;
  flight.seen = reader.seconds(flight_now_ns());
  flight.blocked = map.blocked.read();
  const auto num_groups = std::min<std::uint64_t>(map.num_groups.load(std::memory_order_acquire), FlightMap::kGroups);
  for (std::size_t i = 0; i < num_groups; ++i) {
    const auto& group = map.groups[i];
    flight.groups.push_back({group.identity, group.size, group.rounds.load(std::memory_order_acquire)});
  }
  flight.open = reader.open();
  flight.ended = reader.ended(most_ended);
  const auto process = ProcessIdentity::from_json(text_of(map.process));
  flight.host = process.host;
  flight.pid = process.pid;
  look_at_process(flight, process, map);
  return flight;
}

std::optional<RankFlight> read_flight_file(const std::filesystem::path& file, std::size_t most_ended) try {
  const Descriptor descriptor(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  const bool is_whole = ::fstat(descriptor.get(), &status) == 0 &&
                        status.st_size == static_cast<off_t>(sizeof(FlightMap)) && status.st_uid == ::geteuid();
  void* memory = is_whole ? ::mmap(nullptr, sizeof(FlightMap), PROT_READ, MAP_SHARED, descriptor.get(), 0) : MAP_FAILED;
  if (memory == MAP_FAILED) return std::nullopt;
  const auto unmap = [](const FlightMap* map) { ::munmap(const_cast<FlightMap*>(map), sizeof(FlightMap)); };
  const std::unique_ptr<const FlightMap, decltype(unmap)> map(static_cast<const FlightMap*>(memory), unmap);
  if (map->magic.load(std::memory_order_acquire) != FlightMap::kMagic) return std::nullopt;
  return read_flight(*map, most_ended);
} catch (const FormatError&) {
  return std::nullopt;
}

HostFlights::HostFlights(const std::filesystem::path& run_directory, std::filesystem::path folder)
    : folder_(std::move(folder)), prefix_(kFlightFilePrefix) {
  const auto name = answer_within(kLookAtFolder, [run_directory, folder = folder_] {
    return flight_file(run_directory, 0, folder).filename().string();
  });
  if (name) {
    prefix_ = name->substr(0, name->size() - 1);  // without the rank
    return;
  }
  std::error_code error;
  run_ = std::filesystem::absolute(run_directory, error).lexically_normal();
}

std::vector<RankFlight> HostFlights::read(std::size_t most_ended) const {
  std::vector<RankFlight> flights;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(prefix_)) continue;
    auto flight = read_flight_file(entry->path(), most_ended);
    if (!flight || (!run_.empty() && std::filesystem::path(flight->run).lexically_normal() != run_)) continue;
    flights.push_back(std::move(*flight));
  }
  std::sort(flights.begin(), flights.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return flights;
}

void remove_old_flights(std::filesystem::file_time_type before, const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> old;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(kFlightFilePrefix)) continue;
    const auto flight = read_flight_file(entry->path(), 0);
    if (!flight || !flight->has_ended()) continue;
    std::error_code unknown;
    const auto written = entry->last_write_time(unknown);
    const bool is_old = !unknown && written < before;
    const bool is_gone = !flight->run.empty() && !std::filesystem::exists(flight->run, unknown) && !unknown;
    if (is_old || is_gone) old.push_back(entry->path());
  }
  for (const auto& file : old) std::filesystem::remove(file, error);
}

Json flight_to_json(const RankFlight& flight) {
  Json json{{"rank", flight.rank},
            {"ranks", flight.ranks},
            {"host", flight.host},
            {"pid", flight.pid},
            {"state", std::string(1, flight.state)},
            {"seen", rounded(flight.seen)}};
  if (flight.was_killed_for_memory) json["was_killed_for_memory"] = true;
  if (!flight.blocked.empty()) json["blocked"] = flight.blocked;
  auto& groups = json["groups"] = Json::array();
  for (const auto& group : flight.groups)
    groups.push_back({{"identity", group.identity}, {"size", group.size}, {"rounds", group.rounds}});
  for (const auto& [key, notes] : {std::pair("open", &flight.open), {"ended", &flight.ended}}) {
    auto& list = json[key] = Json::array();
    for (const auto& note : *notes) list.push_back(note_to_json(note));
  }
  return json;
}

std::optional<RankFlight> flight_from_json(const Json& json) try {
  RankFlight flight;
  flight.rank = json.at("rank");
  flight.ranks = json.at("ranks");
  flight.host = json.at("host");
  flight.pid = json.at("pid");
  const auto state = json.at("state").get<std::string>();
  if (!state.empty()) flight.state = state.front();
  flight.seen = json.at("seen");
  flight.was_killed_for_memory = json.value("was_killed_for_memory", false);
  flight.blocked = json.value("blocked", std::string());
  for (const auto& group : json.at("groups")) {
    flight.groups.push_back({group.at("identity").get<std::uint64_t>(), group.at("size").get<int>(),
                             group.at("rounds").get<std::uint32_t>()});
  }
  for (const auto& note : json.at("open")) flight.open.push_back(note_from_json(note));
  for (const auto& note : json.at("ended")) flight.ended.push_back(note_from_json(note));
  return flight;
} catch (const Json::exception&) {
  return std::nullopt;
} catch (const FormatError&) {
  return std::nullopt;
}

}  // namespace fsdp
