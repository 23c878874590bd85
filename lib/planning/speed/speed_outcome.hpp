#pragma once
// Compares predicted and measured step times of earlier runs, and corrects the rates of later predictions by them. Free
// of LibTorch.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/planning/speed/rates.hpp"
#include "lib/planning/speed/step_time.hpp"

namespace fsdp {

/// One training run as its first rank measured it, stored as RUN/speed.json.
struct SpeedOutcome {
  std::string device;  ///< name of the GPU ("NVIDIA A100-SXM4-40GB") or of the processor
  /// key that runs are matched by: the GPU's name in the GPU table ("a100-40g"), or the processor's name
  std::string model;
  bool is_half = false;
  bool has_fp8_products = false;
  int ranks = 1, ranks_per_node = 1;
  HostShare share;
  double tokens = 0;   ///< targets of an average step, over all ranks
  DeviceRates rates;   ///< rates that the prediction was made with
  StepTime predicted;  ///< predicted time of a step
  double seconds = 0;  ///< measured time of a step
  /// measured seconds of each part on a host; all 0 on a GPU, whose host cannot time them
  std::array<double, kNumStepParts> parts{};
  int steps = 0;  ///< number of steps that were timed
};

/// \return relative error of the predicted tokens/s, as a fraction of the measured ones; negative when the prediction
/// was too low
double relative_error(const SpeedOutcome& outcome);
/// Puts the relative error into words: a percentage, or a factor when the prediction is far off.
std::string beside_prediction(const SpeedOutcome& outcome);
/// \return the warning of a job on GPUs whose steps take `times` as long as predicted; "" below twice
/// \param transport  NCCL's, as transports_in_log() gives it; "" where it is unknown or there is none
std::string slow_words(double times, std::string_view transport);

nlohmann::json to_json(const SpeedOutcome& outcome);

/// Reads one speed.json, the one of a run's directory, or those of all runs in a directory (possibly none).
/// \throws FormatError naming a file that is not a valid speed.json, MissingInput
std::vector<SpeedOutcome> read_speed_outcomes(const std::filesystem::path& path);

/// Summary of the earlier runs that a calibration used.
struct SpeedCalibration {
  int runs = 0;
  double lowest_error = 0, highest_error = 0;  ///< extremes of relative_error()
};

/// The kind of run to be predicted; runs of other kinds are ignored.
struct SpeedSubject {
  std::string model;
  bool has_fp8_products = false;
};

/// Corrects `rates` by the earlier runs that match `subject`: the factor of each part becomes the median of the runs'
/// factors, and the speed of products becomes the median of the runs of that precision, if there are any. Leaves
/// `rates` as they are when no run matches. Ignores runs whose predictions were off by more than a factor of 100.
SpeedCalibration calibrate_speed(std::span<const SpeedOutcome> outcomes, const SpeedSubject& subject,
                                 DeviceRates& rates);

}  // namespace fsdp
