#pragma once
// Infers the model of a checkpoint that does not name it.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/models/config/model_config.hpp"
#include "lib/training/state/checkpoint.hpp"

namespace fsdp {

/// The user's statements about the model.
struct RequestedModel {
  std::optional<ModelConfig> config;          ///< from a config.json that was named
  std::map<std::string, std::int64_t> sizes;  ///< size options that were given, such as {"num-heads", 4}
};

/// The model's sizes: from `wish.config`, or a config.json beside the weights, or args of Megatron-core, else from the
/// shapes. The number of
/// heads shows in no shape: it comes from the options or from the checkpoint's `args`. Both are checked against the
/// shapes. \throws RequestError on an option that contradicts a tensor, or without any number of heads; FormatError
ModelConfig model_of_tensors(const Checkpoint& checkpoint, const RequestedModel& wish);

/// Block number in "transformer.h.<number>.<rest>" or "model.layers.<number>.<rest>"; -1 when the name is none of a
/// block.
std::int64_t block_of(const std::string& name);

}  // namespace fsdp
