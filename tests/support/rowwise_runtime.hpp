#pragma once
// Runtimes whose sequences have the same bits in any company, with parameters large enough for attention to matter.
#include <memory>

#include "lib/compute/ops/rowwise_ops.hpp"
#include "lib/engine/runtime/model_runtime.hpp"
#include "lib/training/step/initialize.hpp"

namespace fsdp::test {

inline DeviceChoice rowwise() {
  DeviceChoice device;
  device.ops = std::make_shared<RowwiseOps>();
  return device;
}

inline void fill(ModelRuntime& runtime) {
  initialize_parameters(runtime, 3);
  // Initial matrices are too small for attention to matter.
  for (std::size_t i = 0; i < runtime.engine().num_parameters(); ++i) {
    auto shard = runtime.engine().shard(i, Access::update);
    shard.values().mul_(10);
    shard.finish();
  }
  runtime.engine().sync_parameters();
}

}  // namespace fsdp::test
