#pragma once
// Selects the parameters that are trained: --freeze and --train-only.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// Globs (*, ?, [a-z]) for names of parameters or of the modules that contain them; * also matches dots. Empty patterns
/// are ignored.
struct FreezeOptions {
  std::vector<std::string> train_only;  ///< unless empty, parameters that match none of these are frozen
  std::vector<std::string> freeze;      ///< parameters that match one of these are frozen
};

/// "model.layers.3" and "model.layers.3.*" match all parameters of this block; "*.mlp.*" matches the MLP matrices of
/// all blocks.
bool matches_parameter(std::string_view pattern, const std::string& name);

/// \return a flag for each parameter of the table. In a model with adapters only the adapters can be trained, and the
/// patterns choose among them.
/// \param tied  additional names of parameters, see tied_names()
/// \throws RequestError when a pattern matches nothing, or when no parameter is left to train
std::vector<bool> trainable_parameters(const std::vector<ParameterSpec>& table,
                                       const std::vector<std::pair<std::string, std::string>>& tied,
                                       const FreezeOptions& options);
/// For a model without adapters.
std::vector<bool> trainable_parameters(const ModelConfig& config, const FreezeOptions& options);

/// \return the number of elements of the trainable parameters
std::int64_t num_trained(const std::vector<ParameterSpec>& table, const std::vector<bool>& trainable);

/// Reads the options stored in a checkpoint: space-separated patterns under "freeze" and "train-only".
FreezeOptions saved_freeze_options(const nlohmann::json& options);

}  // namespace fsdp
