#include "tests/gpu/stub_races.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace stub::races {
namespace {

constexpr const char* kCollective = "NCCL";

/// For each stream, by its number, how many of its accesses come before.
class Clock {
 public:
  std::int64_t of(std::size_t stream) const { return stream < counts_.size() ? counts_[stream] : 0; }
  std::int64_t advance(std::size_t stream) {
    if (stream >= counts_.size()) counts_.resize(stream + 1);
    return ++counts_[stream];
  }
  void merge(const Clock& other) {
    if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
    for (std::size_t i = 0; i < other.counts_.size(); ++i) counts_[i] = std::max(counts_[i], other.counts_[i]);
  }

 private:
  std::vector<std::int64_t> counts_;
};

struct Access {
  std::size_t stream;
  std::int64_t count;  ///< 0: none
  const std::string* name;
};
struct Piece {
  std::uintptr_t end;
  Access write{};
  std::vector<Access> reads{};  ///< since the write, the last of each stream
};
struct Record {
  Clock clock;
  std::size_t stream;
  std::string place;  ///< the stream and its last access
  int queries = 0;
};

struct World {
  std::mutex mutex;
  std::atomic<bool> watched = false;
  std::thread::id host;
  std::map<Stream, std::size_t> streams;
  std::vector<Clock> clocks;
  std::vector<const std::string*> last;  ///< the name of each stream's last access; null: none
  Clock host_clock;
  std::map<Happening, Record> records;
  std::map<std::uintptr_t, Piece> pieces;  ///< by their first byte; they do not overlap
  std::set<std::string> names, reports;
  std::vector<std::string> orders;  ///< records and waits so far
  std::size_t dropped = 0;          ///< the number of one of them, from 1 on; 0: none

  std::size_t number_of(Stream stream) {
    const auto [at, added] = streams.try_emplace(stream, clocks.size());
    if (added) {
      clocks.emplace_back();
      last.push_back(nullptr);
    }
    return at->second;
  }
};
World& world() {
  static auto* const the_world = new World;  // never destroyed, because tensors may outlive static objects
  return *the_world;
}

/// Describes a stream by its number and its last access.
std::string text_of(std::size_t stream) {
  const auto* last = world().last[stream];
  return "stream " + std::to_string(stream) + " after " + (last == nullptr ? "nothing" : *last);
}

/// Notes a record or a wait. \return true if it is to be dropped
bool is_dropped(std::string order) {
  world().orders.push_back(std::move(order));
  return world().orders.size() == world().dropped;
}

/// Cuts the pieces so that one begins at `place`, if any has it inside.
void cut_at(std::uintptr_t place) {
  auto& pieces = world().pieces;
  auto after = pieces.upper_bound(place);
  if (after == pieces.begin()) return;
  --after;
  if (after->first == place || after->second.end <= place) return;
  pieces.emplace(place, after->second);
  after->second.end = place;
}

void compare(const Access& before, const Access& now, const Clock& known, bool wrote, bool writes) {
  if (before.count == 0 || known.of(before.stream) >= before.count) return;
  world().reports.insert(*now.name + (writes ? " writes" : " reads") + " on stream " + std::to_string(now.stream) +
                         " what " + *before.name + (wrote ? " writes" : " reads") + " on stream " +
                         std::to_string(before.stream));
}

void take(const Touched& touched, const Access& now, const Clock& known) {
  auto& pieces = world().pieces;
  const auto begin = reinterpret_cast<std::uintptr_t>(touched.data);
  const auto end = begin + static_cast<std::uintptr_t>(touched.bytes);
  cut_at(begin);
  cut_at(end);
  auto place = begin;
  for (auto at = pieces.lower_bound(begin); at != pieces.end() && at->first < end;) {
    auto& piece = at->second;
    compare(piece.write, now, known, true, touched.writes);
    if (touched.writes) {
      for (const auto& read : piece.reads) compare(read, now, known, false, true);
      at = pieces.erase(at);
      continue;
    }
    if (at->first > place) pieces.emplace(place, Piece{at->first, {}, {now}});
    std::erase_if(piece.reads, [&](const Access& read) { return read.stream == now.stream; });
    piece.reads.push_back(now);
    place = piece.end;
    ++at;
  }
  if (touched.writes) {
    pieces.emplace(begin, Piece{end, now, {}});
  } else if (place < end) {
    pieces.emplace(place, Piece{end, {}, {now}});
  }
}

}  // namespace

bool watched() { return world().watched; }

void ran(const std::string& name, std::span<const Touched> touched, Stream stream) {
  if (!watched() || touched.empty()) return;
  const std::scoped_lock lock(world().mutex);
  const auto number = world().number_of(stream);
  auto& clock = world().clocks[number];
  clock.merge(world().host_clock);
  const Access now{number, clock.advance(number), &*world().names.insert(name).first};
  world().last[number] = now.name;
  for (const auto& one : touched) {
    if (one.bytes > 0) take(one, now, clock);
  }
}

void recorded(Happening event, Stream stream) {
  if (!watched()) return;
  const std::scoped_lock lock(world().mutex);
  const auto number = world().number_of(stream);
  if (is_dropped("record on " + text_of(number))) return;
  world().records[event] = {world().clocks[number], number, text_of(number)};
}

void waits(Stream stream, Happening event) {
  if (!watched()) return;
  const std::scoped_lock lock(world().mutex);
  const auto found = world().records.find(event);
  if (found == world().records.end()) return;
  const auto number = world().number_of(stream);
  if (is_dropped("wait of " + text_of(number) + " for " + found->second.place)) return;
  world().clocks[number].merge(found->second.clock);
}

void forget(Happening event) {
  if (!watched()) return;
  const std::scoped_lock lock(world().mutex);
  world().records.erase(event);
}

void host_waited_for(Happening event) {
  if (!watched()) return;
  const std::scoped_lock lock(world().mutex);
  const auto found = world().records.find(event);
  if (found != world().records.end()) world().host_clock.merge(found->second.clock);
}

void host_waited_on(Stream stream) {
  if (!watched()) return;
  const std::scoped_lock lock(world().mutex);
  world().host_clock.merge(world().clocks[world().number_of(stream)]);
}

void host_waited_for_all() {
  if (!watched()) return;
  const std::scoped_lock lock(world().mutex);
  for (const auto& clock : world().clocks) world().host_clock.merge(clock);
}

bool reached(Happening event) {
  if (!watched()) return true;
  // A host that waits for a copy also asks for collectives, for which it does not wait.
  constexpr int kPatience = 3, kPatienceWithCollectives = 300;
  const std::scoped_lock lock(world().mutex);
  const auto found = world().records.find(event);
  if (found == world().records.end()) return true;
  auto& record = found->second;
  if (world().host_clock.of(record.stream) >= record.clock.of(record.stream)) return true;
  if (std::this_thread::get_id() != world().host ||
      ++record.queries < (record.place.ends_with(kCollective) ? kPatienceWithCollectives : kPatience))
    return false;
  world().host_clock.merge(record.clock);
  return true;
}

void given_back(const void* data, std::size_t bytes) {
  if (!watched()) return;
  const std::scoped_lock lock(world().mutex);
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  cut_at(begin);
  cut_at(begin + bytes);
  world().pieces.erase(world().pieces.lower_bound(begin), world().pieces.lower_bound(begin + bytes));
}

}  // namespace stub::races

using stub::races::world;

// For the program that runs on the driver.
#pragma GCC visibility push(default)
extern "C" {

/// Begins to watch, as if all earlier work were done. The calling thread is the host.
/// \param dropped  the number of a record or a wait that does nothing, counted from 1 on; 0: none
void fsdp_stub_watch_races(std::size_t dropped) {
  const std::scoped_lock lock(world().mutex);
  world().host = std::this_thread::get_id();
  world().streams.clear();
  world().clocks.clear();
  world().last.clear();
  world().host_clock = {};
  world().records.clear();
  world().pieces.clear();
  world().reports.clear();
  world().orders.clear();
  world().dropped = dropped;
  world().watched = true;
}

/// Ends the watch.
/// \param each  called for each record and wait since its begin, and for each pair of accesses that nothing orders
void fsdp_stub_take_races(void (*each)(void* context, bool is_race, const char* text), void* context) {
  const std::scoped_lock lock(world().mutex);
  for (const auto& order : world().orders) each(context, false, order.c_str());
  for (const auto& report : world().reports) each(context, true, report.c_str());
  world().watched = false;
}

/// Call when the allocator hands out memory for use on a stream.
void fsdp_stub_allocated(const void* data, std::int64_t bytes, const void* stream) {
  if (stub::captures(stream)) return;
  const stub::Touched touched{data, bytes, true};
  stub::races::ran("allocation", std::span(&touched, 1), stream);
}

}  // extern "C"
#pragma GCC visibility pop
