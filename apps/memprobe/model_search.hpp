#pragma once
// fsdp-memprobe --search model: the most layers that can be trained, of a model's own width and kind; internal to
// apps/memprobe.
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/memprobe/memprobe_job.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp::detail {

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

}  // namespace fsdp::detail
