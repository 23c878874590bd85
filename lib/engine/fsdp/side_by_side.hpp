#pragma once
// Parameters, and gradients, that lie next to each other, so that one product takes them all.
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "lib/engine/fsdp/shard_layout.hpp"

namespace fsdp {

/// Indices of `layouts` by allocation: those that say `same_input`, in their order, where nothing comes between their
/// rows (no padding of shards, no alignment) and they are trained, or frozen, together. Every other one is alone.
/// \param wanted  false: all are
std::vector<std::vector<std::size_t>> side_by_side(const std::vector<ParamLayout>& layouts, int num_shards,
                                                   bool wanted);

/// Buffers [buffer_rows(), ...] of one such group: parts of one tensor that `make` allocates.
std::vector<at::Tensor> make_buffers(const std::vector<ParamLayout>& layouts, const std::vector<std::size_t>& group,
                                     int num_shards, const std::function<at::Tensor(at::IntArrayRef)>& make);

}  // namespace fsdp
