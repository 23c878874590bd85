#pragma once
// The work of each rank of a running job, and the processor, memory and GPU that it uses, in the files of RUN/status
// (docs/formats.md): written by the job, read on other machines.
#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "lib/flight/rank_flight.hpp"

namespace fsdp {

/// NaN: not known.
struct RankStatus {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  double rank = 0;
  double step = kUnknown;              ///< the last one that has ended
  double step_age_seconds = kUnknown;  ///< since its end
  double cores = kUnknown;             ///< that the process kept busy, on average since the record before
  double resident_bytes = kUnknown;    ///< of the process
  double peak_resident_bytes = kUnknown;
  double gpu_bytes = kUnknown;  ///< segments of the caching allocator
  double peak_gpu_bytes = kUnknown;
  double gpu_use = kUnknown;     ///< share of time in which the GPU worked, as NVML counts it
  double card_bytes = kUnknown;  ///< of the GPU's memory, used by all processes
  double watts = kUnknown;
  double celsius = kUnknown;
  double wait_share = kUnknown;  ///< of the time since the record before, in which the rank waited for others
};

struct RankStatusField {
  std::string_view key;
  double RankStatus::*field;
};
inline constexpr std::array kRankStatusFields{RankStatusField{"rank", &RankStatus::rank},
                                              RankStatusField{"step", &RankStatus::step},
                                              RankStatusField{"step_age_seconds", &RankStatus::step_age_seconds},
                                              RankStatusField{"cores", &RankStatus::cores},
                                              RankStatusField{"resident_bytes", &RankStatus::resident_bytes},
                                              RankStatusField{"peak_resident_bytes", &RankStatus::peak_resident_bytes},
                                              RankStatusField{"gpu_bytes", &RankStatus::gpu_bytes},
                                              RankStatusField{"peak_gpu_bytes", &RankStatus::peak_gpu_bytes},
                                              RankStatusField{"gpu_use", &RankStatus::gpu_use},
                                              RankStatusField{"card_bytes", &RankStatus::card_bytes},
                                              RankStatusField{"watts", &RankStatus::watts},
                                              RankStatusField{"celsius", &RankStatus::celsius},
                                              RankStatusField{"wait_share", &RankStatus::wait_share}};

/// A file of RUN/status: the ranks of a node.
struct NodeStatus {
  std::string host;
  double every_seconds = 0;  ///< time between two records
  double age_seconds = 0;    ///< of the record, when it was read
  std::vector<RankStatus> ranks;
  std::vector<RankFlight> flights = {};  ///< what they do; none in files of older versions
};

/// The folder of these files in a run's.
inline constexpr const char* kStatusFolder = "status";
/// "ranks-8.json", after the node's first rank.
std::string status_file_name(int first_rank);

std::string to_json_text(const NodeStatus& node);

/// Removes the files of RUN/status, and the folder if nothing else is in it.
void remove_node_status(const std::filesystem::path& run_directory);

/// Reads the files of RUN/status, by their first ranks. What is missing or damaged is left out.
std::vector<NodeStatus> read_node_status(const std::filesystem::path& run_directory);

}  // namespace fsdp
