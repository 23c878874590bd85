#pragma once
// Records what a rank does, for others to read (rank_flight.hpp): in a file of the node's memory, so that the record
// outlives its rank. An entry costs 0.1 to 0.3 us (bench.flight).
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/flight/flight_event.hpp"
#include "lib/flight/time_use.hpp"

namespace fsdp {

inline constexpr std::string_view kFlightFilePrefix = "fsdp-flight-";
/// The place of a rank's record. One run has one file per rank.
std::filesystem::path flight_file(const std::filesystem::path& run_directory, int rank,
                                  const std::filesystem::path& folder = "/dev/shm");

/// Thread-safe.
class FlightRecorder {
 public:
  struct Rank {
    int rank = 0;
    int ranks = 1;
    std::int64_t clock_offset_ns = 0;  ///< see FlightMap
    std::string run = {};              ///< the run's folder, absolute; "": none
  };

  /// Makes `file`, over one that a killed job of this user left there. Where that cannot be done, the record is in this
  /// process's memory alone. \param file  "": likewise
  FlightRecorder(const Rank& rank, const std::filesystem::path& file);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;
  /// Removes the file.
  virtual ~FlightRecorder();

  const FlightMap& map() const { return *map_; }
  /// Why other processes cannot read the record; "" when they can.
  const std::string& problem() const { return problem_; }

  /// Notes the micro-batch that later events belong to. \param step  0: to none
  void set_place(std::int64_t step, std::int64_t micro_batch);
  /// \param kind  empty: the name is that of collectives until end_work(), and no work is recorded
  void begin_work(std::string_view name, std::optional<WorkKind> kind = WorkKind::compute);
  void end_work();
  TimeUse time_use();

  /// \param members  world ranks \return the group's place
  std::uint8_t add_group(std::span<const int> members);
  /// \return a number that is equal on ranks that have made the same collectives of the group, in the same order and of
  ///         the same sizes: a transport may take others without an error. \param group  from add_group()
  std::uint64_t collectives_of(std::uint8_t group);
  // Virtual, so that plugins can call them without this file's code.
  /// \return the number of a collective
  virtual std::uint64_t begin(FlightKind kind, std::uint8_t group, std::uint64_t bytes);
  /// \param peer   world rank whose counter is waited for
  /// \param round  the value that the counter is to reach
  std::uint64_t begin_counter(std::string_view name, int peer, std::uint64_t round);
  virtual void wait(std::uint64_t number);
  virtual void end(std::uint64_t number);

  /// Keeps the record as it is from now on: the rank fails, and what it leaves on the way has not ended.
  virtual void freeze();
  /// \param text  see FlightMap::blocked
  void set_blocked(std::string_view text);

 private:
  struct Unmap {
    void operator()(FlightMap* map) const;
  };
  struct Name {
    std::uint16_t place = 0;
    std::uint64_t number = 0;  ///< of the work's event; 0: none
    WorkKind kind = WorkKind::compute;
  };
  struct TextHash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::uint64_t open(FlightEvent event);
  FlightEvent new_event(FlightKind kind) const;
  std::uint16_t place_of(std::string_view name);
  /// Null where there is none, or the record is frozen.
  FlightEvent* find_open(std::uint64_t number);
  FlightSlot& slot_of(const FlightEvent* event);
  /// Counts the time until now as what it went into. Call before that changes.
  void pass_time(std::int64_t now_ns);

  std::filesystem::path file_;
  std::string problem_;
  std::unique_ptr<FlightMap, Unmap> map_;
  std::mutex mutex_;
  bool is_frozen_ = false;
  std::uint64_t number_ = 0;
  std::uint32_t step_ = 0;
  std::uint16_t micro_batch_ = 0;
  std::vector<Name> names_;                                ///< outermost first
  std::vector<FlightEvent> open_;                          ///< by place in FlightMap::open
  std::array<std::uint64_t, FlightMap::kGroups> lists_{};  ///< hashes of the collectives of each group
  TimeUse time_use_;
  std::int64_t time_ns_;  ///< up to which time_use_ counts
  int num_waits_ = 0;     ///< that go on, some of them within others
  std::unordered_map<std::string, std::uint16_t, TextHash, std::equal_to<>> places_;  ///< of names
};

/// A piece of work from construction to destruction. \param recorder  may be null
class FlightWork {
 public:
  FlightWork(FlightRecorder* recorder, std::string_view name, WorkKind kind = WorkKind::compute) : recorder_(recorder) {
    if (recorder_ != nullptr) recorder_->begin_work(name, kind);
  }
  FlightWork(const FlightWork&) = delete;
  FlightWork& operator=(const FlightWork&) = delete;
  ~FlightWork() {
    if (recorder_ != nullptr) recorder_->end_work();
  }

 private:
  FlightRecorder* recorder_;
};

/// Nanoseconds of CLOCK_MONOTONIC.
std::int64_t flight_now_ns();

}  // namespace fsdp
