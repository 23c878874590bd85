#pragma once
// Registered buffers for the gathered parameters of units, which replace allocations for each gather.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "lib/engine/fsdp/schedule.hpp"

namespace fsdp {

/// Buffers that units take and give back. Every rank must choose alike, so calls and sizes alone decide: a unit takes
/// the smallest free buffer that is large enough. One that finds none allocates.
class GatherBuffers {
 public:
  /// \param buffers  uint8, one dimension
  explicit GatherBuffers(std::vector<at::Tensor> buffers) : free_(std::move(buffers)) {}
  /// \return a buffer with at least so many bytes; undefined if none is free
  at::Tensor take(std::int64_t bytes);
  /// \throws std::logic_error if a view of the buffer is still there
  void give_back(at::Tensor buffer);

 private:
  std::vector<at::Tensor> free_;
};

/// Sizes of as many buffers as the actions, one list after the other, have units gathered or under way at one time.
/// \param unit_bytes  by unit, of its gathered parameters; 0: it takes no buffer
std::vector<std::int64_t> gather_buffer_bytes(const std::vector<std::vector<Action>>& plans,
                                              const std::vector<std::int64_t>& unit_bytes);

}  // namespace fsdp
