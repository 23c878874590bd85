#pragma once
// The records of a run's ranks, of this host and from RUN/status, and the file that tells why the ranks do not go on.
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/flight/stuck_verdict.hpp"

namespace fsdp {

/// By rank; a record on this host before one in RUN/status. Where the run's folder does not answer within seconds, only
/// those of this host. \param most_ended  see read_flight()
std::vector<RankFlight> flights_of_run(const std::filesystem::path& run_directory, std::size_t most_ended);

/// The verdict and all that it is made from, as JSON that Perfetto also opens: the events of all ranks on one clock.
std::string stuck_text(const Verdict& verdict, std::span<const RankFlight> flights);

struct StuckFile {
  std::filesystem::path path;
  bool is_ours = false;  ///< this call has written it; else another rank has, or does so now
  std::string problem;   ///< why it cannot be written
};
/// Writes RUN/stuck-STEP.json. Ranks may ask for it together: one of them writes, and a file of less than ten seconds
/// ago stays. Takes seconds where the file system does not answer.
StuckFile write_stuck_file(const std::filesystem::path& run_directory, const Verdict& verdict,
                           std::span<const RankFlight> flights);

}  // namespace fsdp
