#pragma once
// What operations on tensors are as items of a step's work; internal to lib/compute/meta.
#include <initializer_list>
#include <vector>

#include "lib/base/work.hpp"
#include "lib/compute/ops/op_types.hpp"
#include "lib/compute/ops/optimizer_updates.hpp"

namespace fsdp::detail {

/// Of tensors that may be undefined, each element as `least` bytes if it has fewer.
double bytes_of(std::initializer_list<const at::Tensor*> tensors, std::size_t least = 1);
double bytes_of(const std::vector<at::Tensor>& tensors);
/// What rows of products take, as a WorkItem.
WorkItem product_work(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add);
/// Multiply-adds of causal attention over its window, twice, and what it reads and writes.
WorkItem attention_work(const at::Tensor& qkv_NC, const AttentionShape& shape, bool backward);
/// What an optimizer's tensors take to be read and written.
double bytes_of_update(const UpdateGroup& group, const std::vector<at::Tensor>& first,
                       const std::vector<at::Tensor>& second = {});

}  // namespace fsdp::detail
