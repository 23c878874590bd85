#pragma once
// Returns an engine's master weights as an optimizer's parameters.
#include <vector>

#include "lib/engine/fsdp/engine.hpp"
#include "lib/engine/optim/optimizer.hpp"

namespace fsdp::test {

inline std::vector<OptimizerParam> engine_params(Engine& engine, bool decay = true) {
  std::vector<OptimizerParam> params;
  for (std::size_t i = 0; i < engine.num_parameters(); ++i)
    params.push_back({engine.stored_master_weight(i), decay, engine.layout(i), engine.range(i)});
  return params;
}

}  // namespace fsdp::test
