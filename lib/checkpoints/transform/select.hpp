#pragma once
// Tells the tensors of a model from those of the optimizer and anything else in a checkpoint.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

struct ModelPart {
  std::vector<bool> contains;  ///< by tensor number
  std::string prefix;          ///< prefix of all names of the model, or empty
};

/// Finds the model: the tensors in a container named model, model_state, model_state_dict, state_dict or module;
/// without such a container, all tensors except those named like an optimizer, a scheduler or a counter. The names of a
/// Llama itself begin with "model.", which is no container then.
ModelPart model_part(const Source& source);

/// The containers beside a model in a container that hold tensors and, by their names, nothing of an optimizer, a
/// scheduler or a counter, with the number of their tensors: {"ema", 12}.
std::map<std::string, std::int64_t> containers_left_out(const Source& source);

/// Removes the prefix of the model part from `name` and `path`.
void strip_prefix(const std::string& prefix, std::string& name, StatePath& path);

}  // namespace fsdp
