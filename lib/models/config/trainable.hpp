#pragma once
// Which parameters of a model are trained: --freeze and --train-only.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// Globs (*, ?, [a-z]) on names of parameters or of the modules that they are in; * matches dots too. Empty words count
/// for nothing.
struct FreezeOptions {
  std::vector<std::string> train_only;  ///< where there are any: what they do not match is frozen
  std::vector<std::string> freeze;      ///< what they match is frozen
};

/// "model.layers.3" and "model.layers.3.*" match all of that block; "*.mlp.*" those matrices of all blocks.
bool matches_parameter(std::string_view pattern, const std::string& name);

/// Indexed as the parameter table. In a model with adapters only these are trained, and patterns choose among them.
/// \param tied  further names: tied_names()
/// \throws UsageError when a pattern matches nothing, or when nothing is left to train
std::vector<bool> trainable_parameters(const std::vector<ParameterSpec>& table,
                                       const std::vector<std::pair<std::string, std::string>>& tied,
                                       const FreezeOptions& options);
/// For a model without adapters.
std::vector<bool> trainable_parameters(const ModelConfig& config, const FreezeOptions& options);

/// Elements of those.
std::int64_t num_trained(const std::vector<ParameterSpec>& table, const std::vector<bool>& trainable);

/// As a checkpoint's run tells them: words between spaces under "freeze" and "train-only".
FreezeOptions saved_freeze_options(const nlohmann::json& options);

}  // namespace fsdp
