#pragma once
// A rank's record as others read it: from the file of flight_recorder.hpp on the rank's host, or from
// RUN/status anywhere. All times are seconds since 1970 on rank 0's clock; 0: not yet.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/flight/flight_event.hpp"

namespace fsdp {

struct FlightNote {
  FlightKind kind = FlightKind::work;
  std::string name;  ///< the work, or the work that a collective is part of
  int group = 0;     ///< place in RankFlight::groups
  std::uint64_t bytes = 0;
  std::int64_t step = 0;  ///< under way; 0: none
  std::int64_t micro_batch = 0;
  std::uint32_t round = 0;  ///< see FlightEvent
  int peer = -1;
  double begin = 0, wait = 0, end = 0;

  bool is_collective() const { return kind != FlightKind::work && kind != FlightKind::counter; }
  bool is_waited_for() const { return wait > 0 && end == 0; }
};

struct RankFlight {
  struct Group {
    std::uint64_t identity = 0;  ///< equal on its members
    int size = 0;
    std::uint32_t rounds = 0;  ///< collectives that the rank has begun
  };

  int rank = 0, ranks = 1;
  std::string run;  ///< its folder on that host; not in RUN/status
  std::string host;
  std::int64_t pid = 0;
  char state = '?';  ///< see ProcessIdentity::state()
  bool was_killed_for_memory = false;
  std::string blocked;  ///< what blocks the main thread in the kernel: "fsync /scratch/x.pt"; "": nothing, or unknown
  double seen = 0;      ///< when this was read from the record
  double every_seconds = 0;  ///< between two looks at the record; 0: it was read just now. Not in JSON
  std::vector<Group> groups;
  std::vector<FlightNote> open;   ///< what goes on, oldest first
  std::vector<FlightNote> ended;  ///< oldest first

  bool has_ended() const { return state == 'X'; }
  bool is_stopped() const { return state == 'T' || state == 't'; }
  /// The collective or counter that the rank has waited for longest; null: it waits for none.
  const FlightNote* waits_for() const;
  /// The innermost work that goes on; null: none.
  const FlightNote* works_on() const;
};

/// \param most_ended  of the last events that have ended
RankFlight read_flight(const FlightMap& map, std::size_t most_ended);
/// Empty where the file is no record of this program.
std::optional<RankFlight> read_flight_file(const std::filesystem::path& file, std::size_t most_ended);
/// The records of a run's ranks on this host, also of ranks that were killed.
class HostFlights {
 public:
  /// Looks at the run's folder, for seconds at most. Where its file system does not answer, records are found by the
  /// path that the job was given, which may go through another link.
  explicit HostFlights(const std::filesystem::path& run_directory, std::filesystem::path folder = "/dev/shm");
  /// By rank. Does not look at the run's folder.
  std::vector<RankFlight> read(std::size_t most_ended) const;

 private:
  std::filesystem::path folder_;
  std::string prefix_;         ///< of the files' names
  std::filesystem::path run_;  ///< that they name; empty: the prefix is the run's
};

/// Removes records of this user's ranks whose processes have ended: those of runs that are gone, and all from before
/// this time.
void remove_old_flights(std::filesystem::file_time_type before, const std::filesystem::path& folder = "/dev/shm");

nlohmann::json flight_to_json(const RankFlight& flight);
/// \return empty for what flight_to_json() would not have made
std::optional<RankFlight> flight_from_json(const nlohmann::json& json);

}  // namespace fsdp
