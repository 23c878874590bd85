#pragma once
// What model a checkpoint without run.json holds, and which of its tensors fills which parameter.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/checkpoint/import_checkpoint.hpp"
#include "lib/config/model_config.hpp"

namespace fsdp {

/// What the user said about the model.
struct ModelWish {
  std::optional<ModelConfig> config;          ///< from a config.json that was named
  std::map<std::string, std::int64_t> sizes;  ///< size options that were given, such as {"num-heads", 4}
};

/// The model's sizes: from `wish.config`, or a config.json beside the weights, else from the shapes. The number of
/// heads shows in no shape: it comes from the options or from the checkpoint's `args`. Both are checked against the
/// shapes. \throws UsageError on an option that contradicts a tensor, or without any number of heads; FormatError
ModelConfig external_model(const ExternalCheckpoint& checkpoint, const ModelWish& wish);

/// Elements of tensor number `tensor`, from `first` on.
struct TensorPlace {
  std::size_t tensor = 0;
  std::uint64_t first = 0;
};

/// AdamW state as a checkpoint has it; by index in parameter_table().
struct ExternalOptimizer {
  bool found = false;
  std::vector<std::optional<TensorPlace>> exp_avg, exp_avg_sq;  ///< nothing: the parameter was frozen
  std::int64_t steps = 0;
  std::string remark;  ///< what the user should know about it; "" nothing
};

/// The tensor of each parameter of `config`, checked to fit: names, shapes, types.
/// \throws FormatError naming tensor, shape and what was expected
std::vector<std::size_t> plan_parameters(const ExternalCheckpoint& checkpoint, const ModelConfig& config);

/// State by parameter name (torch's FSDP and get_state_dict, nested or flattened) or by number
/// (optimizer.state_dict()). \throws FormatError where state is there and does not fit
ExternalOptimizer plan_optimizer_state(const ExternalCheckpoint& checkpoint, const ModelConfig& config);

}  // namespace fsdp
