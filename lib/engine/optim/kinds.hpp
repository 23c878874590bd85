#pragma once
// Optimizers with a file of their own; internal to lib/engine/optim.
#include <memory>

#include "lib/engine/optim/optimizer.hpp"

namespace fsdp {

std::unique_ptr<Optimizer> make_adafactor(OptimizerInput input);
std::unique_ptr<Optimizer> make_blockwise(OptimizerInput input);
std::unique_ptr<Optimizer> make_muon(OptimizerInput input);

}  // namespace fsdp
