#include "lib/flight/stuck_verdict.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "lib/base/text/text_format.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kMostNamed = 4;       // ranks that a sentence describes
constexpr std::uint32_t kMostRounds = 500;  // that are compared

std::string clock_text(double seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  if (::localtime_r(&time, &parts) == nullptr) return "?";
  return fmt::format("{:%H:%M:%S}", parts);
}

std::string rank_text(const RankFlight& flight) {
  return fmt::format("rank {} (process {} on {})", flight.rank, flight.pid, flight.host);
}

/// "ranks 0-2 wait since 14:02:10"
std::string waiting_text(const std::vector<int>& ranks, double since) {
  const bool is_one = ranks.size() == 1;
  return fmt::format("{} {} {} since {}", is_one ? "rank" : "ranks", rank_list(ranks), is_one ? "waits" : "wait",
                     clock_text(since));
}

bool has_tensors(FlightKind kind) {
  return kind == FlightKind::all_gather || kind == FlightKind::all_to_all || kind == FlightKind::reduce_scatter ||
         kind == FlightKind::all_reduce;
}

/// Has to be equal on all ranks that make a collective.
using Likeness = std::tuple<FlightKind, std::uint64_t, std::string>;
Likeness likeness(const FlightNote& note) {
  // Texts differ between ranks, and so do the works in which ranks agree.
  return {note.kind, note.kind == FlightKind::collection ? 0 : note.bytes, has_tensors(note.kind) ? note.name : ""};
}

/// "all-gather 17, "gather block 5", 1.2 MiB (step 212, micro-batch 2)"
std::string entry_text(const FlightNote& note) {
  std::string text;
  if (note.kind == FlightKind::counter) {
    text = fmt::format("\"{}\"", note.name);
  } else {
    text = fmt::format("{} {}", kFlightKinds[static_cast<std::size_t>(note.kind)], note.round);
    if (!note.name.empty()) text += fmt::format(", \"{}\"", note.name);
    if (note.bytes > 0) {
      text += note.bytes < 1024 ? fmt::format(", {} bytes", note.bytes)
                                : fmt::format(", {}", format_bytes(static_cast<double>(note.bytes)));
    }
  }
  if (note.step > 0)
    text += fmt::format(" (step {}{})", note.step,
                        note.micro_batch > 0 ? fmt::format(", micro-batch {}", note.micro_batch) : "");
  return text;
}

/// \param now  the newest time at which a record was read
bool is_silent(const RankFlight& flight, double now) {
  constexpr double kLooks = 3;
  return flight.every_seconds > 0 && now - flight.seen > kLooks * flight.every_seconds;
}

/// Says what the rank does instead.
std::string doing(const RankFlight& flight, double now) {
  if (flight.was_killed_for_memory) return "the kernel has killed it, since its memory was used up";
  if (flight.has_ended()) return "its process has ended";
  const auto* work = flight.works_on();
  if (is_silent(flight, now))
    return fmt::format("nothing was heard of its node since {}{}", clock_text(flight.seen),
                       work == nullptr ? "" : fmt::format(", when it was in \"{}\"", work->name));
  std::vector<std::string> parts;
  if (flight.is_stopped())
    parts.push_back(fmt::format("it is stopped (state T; kill -CONT {} lets it go on)", flight.pid));
  if (work != nullptr) {
    parts.push_back(
        fmt::format("it has been in \"{}\" for {}", work->name, format_duration(flight.seen - work->begin)));
  } else if (!flight.ended.empty()) {
    const auto& last = flight.ended.back();
    parts.push_back(fmt::format(
        "its last work, {}, ended {} ago",
        last.name.empty() ? kFlightKinds[static_cast<std::size_t>(last.kind)] : fmt::format("\"{}\"", last.name),
        format_duration(flight.seen - last.end)));
  }
  if (!flight.blocked.empty()) {
    parts.push_back(fmt::format("the kernel does not let it go on: {}", flight.blocked));
  } else if (flight.state == 'D') {
    parts.push_back("the kernel does not let it go on (uninterruptible, state D)");
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

/// Ranks that make collectives together: the group's place in their lists, and the identity of its members.
using GroupKey = std::pair<std::size_t, std::uint64_t>;

/// The collectives of a rank by group and round.
using Entries = std::map<std::pair<GroupKey, std::uint32_t>, const FlightNote*>;

Entries entries_of(const RankFlight& flight) {
  Entries entries;
  for (const auto* notes : {&flight.ended, &flight.open}) {
    for (const auto& note : *notes) {
      const auto group = static_cast<std::size_t>(note.group);
      if (note.is_collective() && group < flight.groups.size())
        entries[{{group, flight.groups[group].identity}, note.round}] = &note;
    }
  }
  return entries;
}

class Inquiry {
 public:
  Inquiry(std::span<const RankFlight> flights, double patience) : flights_(flights), patience_(patience) {
    for (const auto& flight : flights_) {
      by_rank_[flight.rank] = &flight;
      entries_[flight.rank] = entries_of(flight);
      now_ = std::max(now_, flight.seen);
      const auto* wait = flight.waits_for();
      if (wait != nullptr && flight.seen - wait->wait >= patience_) waits_[flight.rank] = wait;
    }
    for (const auto& [rank, wait] : waits_) look_at_wait(*by_rank_.at(rank), *wait);
  }

  Verdict verdict() {
    if (auto found = disagreement()) return *found;
    auto culprits = not_waiting();
    for (const auto& flight : flights_) {
      if (flight.has_ended() || flight.is_stopped()) culprits.insert(flight.rank);
    }
    if (!culprits.empty()) return blame(culprits);
    if (waits_.empty()) return nobody_waits();
    return in_a_circle();
  }

 private:
  void look_at_wait(const RankFlight& flight, const FlightNote& wait) {
    if (wait.kind == FlightKind::counter) {
      waited_for_[wait.peer].push_back(flight.rank);
      return;
    }
    const auto group = static_cast<std::size_t>(wait.group);
    if (group >= flight.groups.size()) return;
    const auto identity = flight.groups[group].identity;
    for (const auto& other : flights_) {
      if (other.rank == flight.rank || group >= other.groups.size() || other.groups[group].identity != identity)
        continue;
      if (other.groups[group].rounds < wait.round) waited_for_[other.rank].push_back(flight.rank);
    }
  }

  /// Ranks that others wait for and that wait for none.
  std::set<int> not_waiting() const {
    std::set<int> ranks;
    for (const auto& [rank, waiting] : waited_for_) {
      if (!waits_.contains(rank) && by_rank_.contains(rank)) ranks.insert(rank);
    }
    return ranks;
  }

  const FlightNote* entry_of(int rank, const GroupKey& group, std::uint32_t round) const {
    const auto& entries = entries_.at(rank);
    const auto found = entries.find({group, round});
    return found == entries.end() ? nullptr : found->second;
  }

  /// The first collective in which ranks did not do the same, among the last ones of the groups in which ranks wait.
  std::optional<Verdict> disagreement() const {
    for (const auto& [rank, wait] : waits_) {
      if (!wait->is_collective()) continue;
      const auto group = static_cast<std::size_t>(wait->group);
      const auto& groups = by_rank_.at(rank)->groups;
      if (group >= groups.size()) continue;
      const GroupKey key{group, groups[group].identity};
      const auto last = std::max(wait->round, kMostRounds) - kMostRounds;
      for (auto round = last + 1; round <= wait->round; ++round) {
        std::map<Likeness, std::vector<const RankFlight*>> sides;
        for (const auto& flight : flights_) {
          if (const auto* note = entry_of(flight.rank, key, round)) sides[likeness(*note)].push_back(&flight);
        }
        if (sides.size() > 1) return both_entries(key, round, sides);
      }
    }
    return std::nullopt;
  }

  Verdict both_entries(const GroupKey& key, std::uint32_t round,
                       const std::map<Likeness, std::vector<const RankFlight*>>& sides) const {
    std::vector<std::vector<const RankFlight*>> by_size;
    for (const auto& [likeness, side] : sides) by_size.push_back(side);
    std::stable_sort(by_size.begin(), by_size.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
    Verdict verdict{.is_stuck = true,
                    .disagree = true,
                    .ranks = {},
                    .waiting = {},
                    .text = "the ranks disagree about what is next: "};
    std::vector<std::string> parts;
    for (const auto& flights : by_size) {
      std::vector<int> ranks;
      for (const auto* flight : flights) ranks.push_back(flight->rank);
      parts.push_back(fmt::format("{} entered {}",
                                  ranks.size() == 1 ? rank_text(*flights.front()) : "ranks " + rank_list(ranks),
                                  entry_text(*entry_of(ranks.front(), key, round))));
      auto& side = parts.size() == 1 ? verdict.waiting : verdict.ranks;
      side.insert(side.end(), ranks.begin(), ranks.end());
    }
    verdict.text += fmt::format("{}", fmt::join(parts, ", but "));
    return verdict;
  }

  Verdict blame(const std::set<int>& culprits) const {
    Verdict verdict{
        .is_stuck = true, .disagree = false, .ranks = {culprits.begin(), culprits.end()}, .waiting = {}, .text = ""};
    std::vector<std::string> parts;
    double since = 0;
    for (const auto& [rank, wait] : waits_) {
      if (culprits.contains(rank)) continue;
      verdict.waiting.push_back(rank);
      if (since == 0 || wait->wait < since) since = wait->wait;
    }
    for (const int rank : culprits) {
      if (parts.size() == kMostNamed) {
        parts.push_back(fmt::format("and {} more", culprits.size() - kMostNamed));
        break;
      }
      const auto& flight = *by_rank_.at(rank);
      parts.push_back(fmt::format("{}{}: {}", rank_text(flight), place_of(flight), doing(flight, now_)));
    }
    verdict.text = fmt::format("{}", fmt::join(parts, "; "));
    if (!verdict.waiting.empty()) {
      verdict.text += fmt::format("; {}", waiting_text(verdict.waiting, since));
    }
    return verdict;
  }

  /// Where the rank is in the list of collectives, by the wait for it that is longest; "" when no rank waits for it.
  std::string place_of(const RankFlight& flight) const {
    const FlightNote* first = nullptr;
    if (const auto waiting = waited_for_.find(flight.rank); waiting != waited_for_.end()) {
      for (const int other : waiting->second) {
        const auto* wait = waits_.at(other);
        if (first == nullptr || wait->wait < first->wait) first = wait;
      }
      return fmt::format(" has not {} {}", first->is_collective() ? "entered" : "come to", entry_text(*first));
    }
    for (const auto& [rank, wait] : waits_) {
      const auto group = static_cast<std::size_t>(wait->group);
      const auto& groups = by_rank_.at(rank)->groups;
      if (rank == flight.rank || !wait->is_collective() || group >= groups.size()) continue;
      const auto* entry = entry_of(flight.rank, {group, groups[group].identity}, wait->round);
      if (entry != nullptr && entry->end == 0)
        return fmt::format(" has entered {} and does not go on", entry_text(*entry));
    }
    return "";
  }

  Verdict nobody_waits() const {
    Verdict verdict;
    const RankFlight* slowest = nullptr;
    for (const auto& flight : flights_) {
      const auto* work = flight.works_on();
      if (work != nullptr && (slowest == nullptr || work->begin < slowest->works_on()->begin)) slowest = &flight;
    }
    verdict.text = patience_ > 0 ? fmt::format("no rank has waited {} for another", format_duration(patience_))
                                 : "no rank waits for another";
    if (slowest != nullptr) verdict.text += fmt::format("; {}: {}", rank_text(*slowest), doing(*slowest, now_));
    return verdict;
  }

  /// Every rank that is known waits.
  Verdict in_a_circle() const {
    Verdict verdict{.is_stuck = true, .disagree = false, .ranks = {}, .waiting = {}, .text = ""};
    for (const auto& [rank, wait] : waits_) verdict.waiting.push_back(rank);
    std::vector<int> unknown;
    for (int rank = 0; rank < flights_.front().ranks; ++rank) {
      if (!by_rank_.contains(rank)) unknown.push_back(rank);
    }
    const auto& [first, wait] = *std::min_element(
        waits_.begin(), waits_.end(), [](const auto& a, const auto& b) { return a.second->wait < b.second->wait; });
    if (!unknown.empty()) {
      verdict.ranks = unknown;
      verdict.text = fmt::format("nothing is known of {} {}, whose node left no record; {} in {}",
                                 unknown.size() == 1 ? "rank" : "ranks", rank_list(unknown),
                                 waiting_text(verdict.waiting, wait->wait), entry_text(*wait));
      return verdict;
    }
    // Two that wait for each other are in different groups.
    for (const auto& [rank, waiting] : waited_for_) {
      if (!waits_.contains(rank)) continue;
      const int other = waiting.front();
      verdict.disagree = true;
      verdict.ranks = {std::min(rank, other), std::max(rank, other)};
      verdict.text = fmt::format("the ranks disagree about what is next: {} waits in {}, but {} waits in {}",
                                 rank_text(*by_rank_.at(other)), entry_text(*waits_.at(other)),
                                 rank_text(*by_rank_.at(rank)), entry_text(*waits_.at(rank)));
      return verdict;
    }
    verdict.text = fmt::format(
        "all ranks that are to make it have entered {} and wait since {}: what carries it between them does not go on",
        entry_text(*wait), clock_text(wait->wait));
    return verdict;
  }

  std::span<const RankFlight> flights_;
  double patience_;
  double now_ = 0;  ///< the newest time at which a record was read
  std::map<int, const RankFlight*> by_rank_;
  std::map<int, Entries> entries_;              ///< by rank
  std::map<int, const FlightNote*> waits_;      ///< by the rank that waits
  std::map<int, std::vector<int>> waited_for_;  ///< ranks that wait for a rank
};

}  // namespace

std::string rank_list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    parts.push_back(last == i ? std::to_string(ranks[i])
                              : fmt::format("{}{}{}", ranks[i], last == i + 1 ? ", " : "-", ranks[last]));
    i = last + 1;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

Verdict verdict_of(std::span<const RankFlight> flights, double patience_seconds) {
  if (flights.empty())
    return {.is_stuck = false, .disagree = false, .ranks = {}, .waiting = {}, .text = "no rank has left a record"};
  return Inquiry(flights, patience_seconds).verdict();
}

}  // namespace fsdp
