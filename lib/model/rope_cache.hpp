#pragma once
// Cosines and sines of rotary positions, made once for as many positions as a model has met.
#include <ATen/core/Tensor.h>

#include <vector>

#include "lib/model/llama_ops.hpp"

namespace fsdp {

/// Shared by the blocks of one decoder; one thread at a time.
class RopeCache {
 public:
  /// \param frequencies  radians per position, see rope_frequencies()
  explicit RopeCache(std::vector<float> frequencies) : frequencies_(std::move(frequencies)) {}

  /// The table for positions [0, positions) and perhaps more, on that device.
  const ops::RopeTable& up_to(std::int64_t positions, at::Device device);

 private:
  std::vector<float> frequencies_;
  ops::RopeTable table_;
};

}  // namespace fsdp
