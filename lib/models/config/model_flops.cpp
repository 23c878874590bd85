#include "lib/models/config/model_flops.hpp"

#include <algorithm>

namespace fsdp {
namespace {

/// Depth to which gradients flow.
struct Backward {
  std::int64_t lowest;      ///< lowest block with a trained parameter in it or below it; num_layers: none
  bool below_head = false;  ///< the final norm or something below it is trained
};

Backward reach_of(const ModelConfig& config, const std::vector<ParameterSpec>& table,
                  const std::vector<bool>& trainable) {
  Backward reach{config.num_layers};
  for (std::size_t i = 0; i < table.size(); ++i) {
    const bool is_norm = table[i].block < 0 && table[i].shape.size() == 1;
    if (!trainable[i] || (table[i].block < 0 && !table[i].embedding && !is_norm)) continue;
    reach.below_head = true;
    if (!is_norm) reach.lowest = std::min<std::int64_t>(reach.lowest, std::max(0, table[i].block));
  }
  return reach;
}

void add(ModelFlops& flops, double forward, double backward, bool recomputable) {
  flops.forward += forward;
  flops.backward += backward;
  if (recomputable) flops.recomputable += forward;
}

}  // namespace

ModelFlops flops_per_token(const ModelConfig& config, std::int64_t sequence_length,
                           const std::vector<ParameterSpec>& table, const std::vector<bool>& trainable) {
  const bool tied = !tied_names(config).empty();
  const auto reach = reach_of(config, table, trainable);
  ModelFlops flops;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const bool is_head = table[i].embedding && tied && i == 0;
    if (table[i].embedding && !is_head) continue;  // an embedding is a lookup, not a product
    const bool in_block = table[i].block >= 0;
    const bool reached = in_block ? table[i].block >= reach.lowest : reach.below_head;
    const auto parameters = static_cast<double>(num_parameters({table[i]}));
    add(flops, 2 * parameters, (reached ? 2 : 0) * parameters + (trainable[i] ? 2 : 0) * parameters,
        in_block && reached);
  }
  const auto width = static_cast<double>(config.num_heads * config.head_width());
  // Scores and their product with the values: 2 x 2 x L x d forward, twice as much backward; half of it is masked, as
  // are keys outside of a window.
  const auto length = static_cast<double>(sequence_length);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const auto window = config.traits.slides(layer) ? static_cast<double>(config.traits.window) : length;
    const double seen = window < length ? window - window * window / (2 * length) : length / 2;
    const bool reached = layer >= reach.lowest;
    add(flops, 4 * seen * width, reached ? 8 * seen * width : 0, reached);
  }
  return flops;
}

ModelFlops flops_per_token(const ModelConfig& config, std::int64_t sequence_length) {
  const auto table = parameter_table(config);
  return flops_per_token(config, sequence_length, table, std::vector<bool>(table.size(), true));
}

}  // namespace fsdp
