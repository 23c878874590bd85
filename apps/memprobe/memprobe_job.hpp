#pragma once
// Requests and answers of fsdp-memprobe: memory and speed of each combination, and the searches for the largest batch
// and the largest model; internal to apps/memprobe.
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/memprobe/memprobe.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/planning/memory/measurement.hpp"
#include "lib/planning/memory/prediction.hpp"
#include "lib/planning/speed/speed_outcome.hpp"
#include "lib/planning/speed/step_time.hpp"
#include "lib/training/data/data_loader.hpp"

namespace fsdp::detail {

struct Combination {
  Sharding sharding = Sharding::full_shard;
  int checkpoint_every = 0;
  c10::ScalarType precision = c10::ScalarType::Float;
  int ranks = 1, ranks_per_node = 1;

  std::string checkpointing() const { return activation_checkpointing_name(checkpoint_every); }
};

/// The predicted time and throughput of a step.
struct StepSpeed {
  StepTime time;
  double tokens = 0;  ///< target tokens of a step, summed over ranks
  double tokens_per_second = 0;
  double mfu = 0;  ///< of a model's operations, once each, as a part of the devices' peak
};

struct Answer {
  Combination combination;
  std::int64_t batch_size =
      0;  ///< that prediction and measurement are about; of a search the fastest or the largest, or 1
  MemoryPrediction prediction;
  bool fits = true;
  std::optional<std::int64_t> largest;           ///< of a search: 0 when not even one fits
  std::optional<std::int64_t> measured_largest;  ///< of a search that measured
  std::optional<MemoryMeasurement> measured;
  std::optional<StepSpeed> speed;
  bool alone = false;  ///< one process measured one rank
};

/// The memory that one rank may use, on a GPU or on the host.
struct MemoryBudget {
  std::optional<GpuSpec> gpu;
  std::int64_t host_bytes = 0;    ///< CPUs
  std::int64_t margin_bytes = 0;  ///< of either, to stay free
};

/// Whether a rank's prediction stays inside: a GPU without retries; on CPUs with program and a save under way.
bool fits_budget(const MemoryPrediction& prediction, const MemoryBudget& budget);
/// What is held against the memory: on CPUs a rank's tensors, its program, and what a save or a load needs beside them;
/// on a GPU segments, context and NCCL.
std::int64_t needed_bytes(const MemoryPrediction& prediction);
/// Bytes of the budget that remain free; negative when the prediction exceeds it. Affine in the batch size except for
/// rounding.
std::int64_t headroom(const MemoryPrediction& prediction, const MemoryBudget& budget);

/// --train-data where it is a token file, as a run reads it.
std::optional<TokenLoader> open_token_file(const TrainOptions& options, const ModelConfig& config, bool on_gpu);
/// Of that file, or what a run of the model would have without one.
std::int64_t tokens_per_sequence(const TrainOptions& options, const ModelConfig& config,
                                 const std::optional<TokenLoader>& data);

/// What is asked for: every strategy, recomputation and precision on every number of ranks. Without --ranks those of
/// this job. \throws UsageError naming the option
std::vector<Combination> combinations(const MemprobeOptions& options, int world_size, int world_ranks_per_node);

/// The batch sizes that keep a total: all when the job names none.
std::vector<std::int64_t> allowed_batches(const TrainOptions& options, int ranks, std::int64_t most);

/// The largest of `batches` (ascending) that passes, 0 for none, as far as growing batches pass until one does not.
/// \param guess  what is tried first
std::int64_t largest_that_fits(const std::vector<std::int64_t>& batches, std::int64_t guess,
                               const std::function<bool(std::int64_t)>& passes);
/// Where the headroom of a growing batch should end, by its first two points.
std::int64_t guess_largest(const std::vector<std::int64_t>& batches,
                           const std::function<std::int64_t(std::int64_t)>& room);

/// One measurement in a process of its own, which may run out of memory without harm. \return nothing when it did
/// \param pulse  called several times a second meanwhile; what it throws ends the measurement
std::optional<MemoryMeasurement> measure_in_child(const MemprobeOptions& options, const Combination& combination,
                                                  std::int64_t batch_size, std::int64_t margin_bytes,
                                                  const std::function<void()>& pulse);

nlohmann::json measurement_json(const MemoryMeasurement& measured);
nlohmann::json answer_json(const Answer& answer, const MemprobeOptions& options, const MemoryBudget& budget);

/// What a person reads: one answer in full, or a table of several.
std::string describe_answer(const Answer& answer, const MemprobeOptions& options, const MemoryBudget& budget);
/// \param largest  as the plan is chosen
std::string describe_table(const std::vector<Answer>& answers, const MemoryBudget& budget, bool largest);

/// Writes the last step's timeline, as SVG where the name ends so, else as PNG.
void draw_memory(const std::string& file, const Answer& answer, const MemoryBudget& budget, const std::string& title);

inline constexpr std::int64_t kMostLayers = 4096;  ///< where a search ends

/// The same model with other `layers`; what its layers take turns in goes on in the same way.
ModelConfig with_layers(ModelConfig config, std::int64_t layers);

struct ModelAnswer {
  Combination combination;
  std::int64_t layers = 0;  ///< 0: not even one fits; kMostLayers: or more
  std::int64_t parameters = 0;
  MemoryPrediction prediction;  ///< of that many, or of one
};

/// \param config   its number of layers does not matter
/// \param predict  the memory of a model of so many layers
ModelAnswer search_model(const Combination& combination, const ModelConfig& config, const MemoryBudget& budget,
                         const std::function<MemoryPrediction(const ModelConfig&)>& predict);

std::string describe_models(const std::vector<ModelAnswer>& answers, const MemoryBudget& budget);
/// The largest, and all of them under `combinations`.
nlohmann::json models_json(const std::vector<ModelAnswer>& answers, const MemoryBudget& budget);

/// \throws UsageError for what only a search of batches does
void check_model_search(const MemprobeOptions& options);

class SpeedModel {
 public:
  /// Of the GPU, or of this host's processor, whose products are timed for a moment unless --rates knows them.
  /// Collective. \throws FormatError, MissingInput of --rates and --calibration
  SpeedModel(ProcessGroup& world, const MemprobeOptions& options, const std::optional<GpuSpec>& gpu);

  /// Returns nothing when the device's rates are unknown.
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

/// Returns the index of the answer to plan. \pre `answers` is not empty
std::size_t best_answer(const std::vector<Answer>& answers, bool largest);
/// Sorts answers by speed, fastest first; answers that do not fit come last.
void sort_by_speed(std::vector<Answer>& answers);

/// "3,340 tok/s, 0.61 s a step, 45 % MFU: products 80 %, passes 12 %"
std::string describe_speed(const StepSpeed& speed);
nlohmann::json speed_json(const StepSpeed& speed);

}  // namespace fsdp::detail
