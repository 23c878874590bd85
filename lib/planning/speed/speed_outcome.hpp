#pragma once
// How right predictions of speed were: what a run's steps were predicted to take and what they took, and what to make
// of it. Free of LibTorch.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "lib/planning/speed/rates.hpp"
#include "lib/planning/speed/step_time.hpp"

namespace fsdp {

/// One training run, as its first rank saw it. RUN/speed.json.
struct SpeedOutcome {
  std::string device;  ///< "NVIDIA A100-SXM4-40GB"; a processor's name
  std::string model;   ///< what runs are compared by: a GPU's name in the table, "a100-40g"; a processor's name
  bool is_half = false;
  bool has_fp8_products = false;
  int ranks = 1, ranks_per_node = 1;
  HostShare share;
  double tokens = 0;                          ///< targets of an average step, all ranks
  DeviceRates rates;                          ///< that the prediction was made with
  StepTime predicted;                         ///< of a step
  double seconds = 0;                         ///< that it took
  std::array<double, kNumStepParts> parts{};  ///< of them, on a host; all 0 on a GPU, whose host does not know
  int steps = 0;                              ///< that were timed
};

/// Of the prediction's tokens/s, as a part of what was measured: negative when it was too low.
double relative_error(const SpeedOutcome& outcome);
/// The same in words: a percentage, or how many times where it is far off.
std::string beside_prediction(const SpeedOutcome& outcome);

nlohmann::json to_json(const SpeedOutcome& outcome);

/// Of a speed.json, a run's directory, or a directory of runs, which may hold none.
/// \throws FormatError naming the file that is none, MissingInput
std::vector<SpeedOutcome> read_speed_outcomes(const std::filesystem::path& path);

/// What runs on such a device have shown.
struct SpeedCalibration {
  int runs = 0;
  double lowest_error = 0, highest_error = 0;  ///< of relative_error()
};

/// What is to be predicted: earlier runs say nothing of another.
struct SpeedSubject {
  std::string model;
  bool has_fp8_products = false;
};

/// Changes rates to what the runs of such a kind took: each part's factor is the median of theirs; where there are
/// such runs of the precision, the speed of products is theirs too. Where there are none, nothing changes.
/// Runs whose predictions were off by more than a hundred times say nothing.
SpeedCalibration calibrate_speed(std::span<const SpeedOutcome> outcomes, const SpeedSubject& subject,
                                 DeviceRates& rates);

}  // namespace fsdp
