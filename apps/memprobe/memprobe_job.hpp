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
#include "lib/training/data/training_data.hpp"

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
  double mfu = 0;  ///< model FLOPs utilization, without recomputation; a fraction of the devices' peak
};

struct Answer {
  Combination combination;
  std::int64_t batch_size =
      0;  ///< of prediction and measurement; for a search the fastest or the largest batch, 1 when none fits
  MemoryPrediction prediction;
  bool fits = true;
  std::optional<std::int64_t> largest;           ///< for a search: largest batch that fits; 0: none
  std::optional<std::int64_t> measured_largest;  ///< for a search with measurements
  std::optional<MemoryMeasurement> measured;
  std::optional<StepSpeed> speed;
  bool alone = false;  ///< a single process measured one simulated rank
};

/// The memory that one rank may use, on a GPU or on the host.
struct MemoryBudget {
  std::optional<GpuSpec> gpu;
  std::int64_t host_bytes = 0;    ///< for CPUs
  std::int64_t margin_bytes = 0;  ///< bytes that must stay free
};

/// True when a rank's prediction fits: on a GPU without allocator retries, on CPUs including the program and a save in
/// the background.
bool fits_budget(const MemoryPrediction& prediction, const MemoryBudget& budget);
/// Returns the bytes that are compared with the budget: on CPUs a rank's tensors, its program, and the buffers of a
/// save or a load; on a GPU the allocator's segments, the CUDA context and NCCL.
std::int64_t needed_bytes(const MemoryPrediction& prediction);
/// Bytes of the budget that remain free; negative when the prediction exceeds it. Affine in the batch size except for
/// rounding.
std::int64_t headroom(const MemoryPrediction& prediction, const MemoryBudget& budget);

/// Opens --train-data as a training run would when it is a token file; else returns nothing.
std::optional<TrainingData> open_token_files(const TrainOptions& options, const ModelConfig& config, bool on_gpu);
/// Returns the tokens of a row of that file, or the length that a run would use without one.
std::int64_t tokens_per_sequence(const TrainOptions& options, const ModelConfig& config,
                                 const std::optional<TrainingData>& data);

/// Returns every combination of strategy, recomputation, precision and number of ranks that the options ask for.
/// Without --ranks, the number of ranks is this job's. \throws UsageError naming the option
std::vector<Combination> combinations(const MemprobeOptions& options, int world_size, int world_ranks_per_node);

/// Returns the batch sizes up to `most` that give the job's total batch size; all of them when the job sets no total.
std::vector<std::int64_t> allowed_batches(const TrainOptions& options, int ranks, std::int64_t most);

/// Returns the largest of `batches` (ascending) that passes, 0 when none does. Assumes that all batches below one that
/// passes pass, too.
/// \param guess  the first batch to try
std::int64_t largest_that_fits(const std::vector<std::int64_t>& batches, std::int64_t guess,
                               const std::function<bool(std::int64_t)>& passes);
/// Extrapolates the headroom of the first two batches to the largest batch with room left.
std::int64_t guess_largest(const std::vector<std::int64_t>& batches,
                           const std::function<std::int64_t(std::int64_t)>& room);

/// Measures in a child process, which may run out of memory without harm. \return nothing when it did
/// \param pulse  called several times a second during the measurement; an exception from it ends the measurement
std::optional<MemoryMeasurement> measure_in_child(const MemprobeOptions& options, const Combination& combination,
                                                  std::int64_t batch_size, std::int64_t margin_bytes,
                                                  const std::function<void()>& pulse);

nlohmann::json measurement_json(const MemoryMeasurement& measured);
nlohmann::json answer_json(const Answer& answer, const MemprobeOptions& options, const MemoryBudget& budget);

/// Formats one answer in full for the terminal.
std::string describe_answer(const Answer& answer, const MemprobeOptions& options, const MemoryBudget& budget);
/// Names what a job in float32 would take in bf16, in one line.
std::string describe_bf16(const Answer& answer, const MemprobeOptions& options, const MemoryBudget& budget);
/// Formats a table of several answers.
std::string describe_table(const std::vector<Answer>& answers, const MemprobeOptions& options,
                           const MemoryBudget& budget);

/// Plots the last step's timeline as SVG.
void draw_memory(const std::string& file, const Answer& answer, const MemoryBudget& budget, const std::string& title);

inline constexpr std::int64_t kMostLayers = 4096;  ///< upper limit of a model search

/// Returns the same model with `layers` layers; patterns over layers, such as alternating attention windows, continue.
ModelConfig with_layers(ModelConfig config, std::int64_t layers);

struct ModelAnswer {
  Combination combination;
  std::int64_t layers = 0;  ///< most that fit; 0: not even one; kMostLayers: that many or more
  std::int64_t parameters = 0;
  MemoryPrediction prediction;  ///< for `layers` layers, or for one when none fits
};

/// \param config   model to scale; its number of layers is ignored
/// \param predict  predicts the memory of a model with the given number of layers
ModelAnswer search_model(const Combination& combination, const ModelConfig& config, const MemoryBudget& budget,
                         const std::function<MemoryPrediction(const ModelConfig&)>& predict);

std::string describe_models(const std::vector<ModelAnswer>& answers, const MemoryBudget& budget);
/// Returns the largest model, and all answers under `combinations`.
nlohmann::json models_json(const std::vector<ModelAnswer>& answers, const MemoryBudget& budget);

/// Refuses options that only a search for batches uses. \throws UsageError
void check_search_options(const MemprobeOptions& options);

/// Changes of the given options that --search ranks tries so that fewer ranks do: bits of a set.
enum Lever : unsigned { kRecompute = 1, kEightBit = 2, kOffload = 4 };

/// The levers that the options leave, because they do not ask for them already.
unsigned free_levers(const MemprobeOptions& options, const MemoryBudget& budget);
/// The options of a job with these levers, but for recomputation, which is a part of a combination.
TrainOptions with_levers(TrainOptions options, unsigned levers);

/// Names the smallest sets of changes of the options that make a job fit which does not, with the host memory of a node
/// where a set moves the optimizer there; only changes that the options do not make already.
/// \param accumulation_steps  micro-batches of the job's step
/// \return part of a sentence, "it fits with --activation-checkpointing; ..."
std::string what_would_fit(const MemprobeOptions& options, const MemoryBudget& budget, const MemoryRequest& asked,
                           int accumulation_steps);

struct RanksAnswer {
  Combination combination;  ///< with the fewest ranks that fit, and recomputation if that is a lever
  unsigned levers = 0;
  MemoryPrediction prediction;
  std::optional<StepSpeed> speed = {};
};

/// Returns the numbers of ranks that a search tries: up to a node's, then whole nodes, and at most `most`; of a job
/// with a total batch size those that divide it.
std::vector<std::int64_t> rank_counts(const TrainOptions& options, int ranks_per_node, int most);

/// Finds the fewest of `counts` for each combination and set of levers. Leaves out what fits on none of them, and sets
/// that need as many ranks as a part of the set. Assumes that more ranks fit where fewer do.
/// \return by number of ranks, then of levers
std::vector<RanksAnswer> search_ranks(const std::vector<Combination>& combinations, unsigned levers,
                                      const std::vector<std::int64_t>& counts,
                                      const std::function<MemoryPrediction(const Combination&, unsigned)>& predict,
                                      const std::function<bool(const MemoryPrediction&)>& fits);

std::string describe_ranks(const std::vector<RanksAnswer>& answers, const MemprobeOptions& options,
                           const MemoryBudget& budget);
/// Returns the answer with the fewest ranks, and all answers under `combinations`.
nlohmann::json ranks_json(const std::vector<RanksAnswer>& answers, const MemprobeOptions& options,
                          const MemoryBudget& budget);

class SpeedModel {
 public:
  /// Takes the rates of the GPU, or of this host's processor, whose matrix products are timed briefly unless --rates
  /// gives them. Collective. \throws FormatError, MissingInput about --rates and --calibration
  SpeedModel(ProcessGroup& world, const MemprobeOptions& options, const std::optional<GpuSpec>& gpu);

  /// Returns nothing when the device's rates are unknown.
  std::optional<StepSpeed> of(const MemoryPrediction& prediction, const Combination& combination) const;
  /// "a100-80g's data sheet and 2 earlier runs"
  const std::string& source() const { return rates_.source; }
  const SpeedCalibration& calibration() const { return calibration_; }
  nlohmann::json json() const;

 private:
  HostShare share_of(const Combination& combination) const;

  std::string model_;  ///< the device's name in the records of runs
  DeviceRates rates_;
  int node_cores_ = 1;
  SpeedCalibration calibration_;
};

/// Compares the speed of the largest batch and of a few smaller ones from `batches`, and returns the smallest batch
/// whose speed is within half a percent of the highest.
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
