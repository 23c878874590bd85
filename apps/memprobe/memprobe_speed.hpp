#pragma once
// How fast combinations are, and which is to be planned; internal to apps/memprobe.
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/memprobe/memprobe_job.hpp"
#include "lib/planning/speed/speed_outcome.hpp"

namespace fsdp::detail {

class SpeedModel {
 public:
  /// Of the GPU, or of this host's processor, whose products are timed for a moment unless --rates knows them.
  /// Collective. \throws FormatError, MissingInput of --rates and --calibration
  SpeedModel(ProcessGroup& world, const MemprobeOptions& options, const std::optional<GpuSpec>& gpu);

  /// Nothing where rates are not known.
  std::optional<StepSpeed> of(const MemoryPrediction& prediction, const Combination& combination) const;
  /// "a100-80g's data sheet and 2 earlier runs"
  const std::string& source() const { return rates_.source; }
  const SpeedCalibration& calibration() const { return calibration_; }
  nlohmann::json json() const;

 private:
  HostShare share_of(const Combination& combination) const;

  std::string model_;  ///< as runs call it
  DeviceRates rates_;
  int node_cores_ = 1;
  SpeedCalibration calibration_;
};

/// The batch of the highest speed, of `largest` and a few smaller ones of `batches`: the smallest that is as good as
/// that within half a percent.
std::int64_t fastest_batch(const std::vector<std::int64_t>& batches, std::int64_t largest,
                           const std::function<double(std::int64_t)>& tokens_per_second);

/// Which is to be planned. \pre there is one
std::size_t best_answer(const std::vector<Answer>& answers, bool largest);
/// Fastest first; those that do not fit come last.
void sort_by_speed(std::vector<Answer>& answers);

/// "3,340 tok/s, 0.61 s a step, 45 % MFU: products 80 %, passes 12 %"
std::string describe_speed(const StepSpeed& speed);
nlohmann::json speed_json(const StepSpeed& speed);

}  // namespace fsdp::detail
