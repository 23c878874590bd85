#pragma once
// Tells a model's tensors from the optimizer's and everything else in a checkpoint.
#include <string>
#include <vector>

#include "lib/files/read/source.hpp"

namespace fsdp {

struct ModelPart {
  std::vector<bool> contains;  ///< by tensor number
  std::string prefix;          ///< "model.", "model_state.", ... in front of all of its names, or empty
};

/// The model is what lies in a container named model, model_state, model_state_dict, state_dict or module; without one,
/// everything but what is named like an optimizer, a scheduler or a counter. A Llama's own names begin with "model.",
/// which then is no container.
ModelPart model_part(const Source& source);

/// `name` and `path` without the model part's prefix.
void strip_prefix(const std::string& prefix, std::string& name, StatePath& path);

}  // namespace fsdp
