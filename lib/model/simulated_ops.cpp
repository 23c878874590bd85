#include "lib/model/simulated_ops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "lib/tensor/memory_recorder.hpp"

namespace fsdp::ops::detail {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t last_power_of_two(std::int64_t n) {
  return std::int64_t{1} << (std::bit_width(static_cast<std::uint64_t>(n)) - 1);
}

struct ReductionRoom {
  std::int64_t bytes = 0;
  std::int64_t semaphore_bytes = 0;
};

/// What a sum over the rows of a matrix [rows, columns] takes when its rows are dealt out to several thread blocks:
/// setReduceConfig() and ReduceConfig of aten/src/ATen/native/cuda/Reduce.cuh, PyTorch 2.11, for sums in float32 where
/// the columns lie one after the other.
ReductionRoom column_sum_room(std::int64_t rows, std::int64_t columns) {
  if (rows < 1 || columns < 1) return {};
  constexpr std::int64_t kMaxThreads = 512, kWarp = 32, kMinValues = 16, kMaxValues = 256;
  const std::int64_t vector = columns % 4 == 0 ? 4 : (columns % 2 == 0 ? 2 : 1);
  const auto threads = kMaxThreads / vector;
  const auto wide = last_power_of_two(std::min(columns / vector, threads));
  const auto high = last_power_of_two(std::min(rows, threads));
  const auto block_height = std::min(high, threads / std::min(wide, kWarp));
  const auto block_width = std::min(wide, threads / block_height);
  if (rows < std::min(block_height * kMinValues, kMaxValues)) return {};  // not even split across warps
  const auto values = ceil_div(rows, block_height);                       // per thread
  const auto grid = ceil_div(columns / vector, block_width);
  const auto capability = simulated_traits().compute_capability;
  const std::int64_t threads_at_once = capability == 75                                            ? 1024
                                       : (capability > 80 && capability < 90) || capability >= 120 ? 1536
                                                                                                   : 2048;
  const auto blocks_at_once = simulated_traits().multiprocessors * (threads_at_once / (block_width * block_height));
  if (values < kMaxValues || grid > blocks_at_once) return {};
  const auto blocks =
      std::max(std::min(ceil_div(blocks_at_once, grid), ceil_div(values, kMinValues)), ceil_div(values, kMaxValues));
  if (blocks <= 1) return {};
  constexpr std::int64_t kSum_bytes = 4;
  return {kSum_bytes * columns * blocks * block_width * vector, 4 * grid};
}

}  // namespace

at::Tensor simulated_embed(const at::Tensor& token_VD, bool positions, std::int64_t tokens) {
  const auto rows = [&] { return at::empty({tokens, token_VD.size(1)}, token_VD.options()); };
  if (!positions) return rows();
  const auto places = at::empty({tokens}, token_VD.options().dtype(at::kLong));
  const auto remainder = at::empty_like(places);
  auto out = rows();
  const auto looked_up = rows();
  return out;
}

void simulated_layer_norm(NormResult& result) {
  const auto& x_ND = result.sum_ND;
  const auto statistics = x_ND.options().dtype(at::kFloat);
  result.out_ND = at::empty_like(x_ND);
  result.mean_N = at::empty({x_ND.size(0)}, statistics);
  result.rstd_N = at::empty({x_ND.size(0)}, statistics);
}

at::Tensor simulated_layer_norm_backward(const at::Tensor& x_ND, const NormGrads& grads, const NormAgain* again) {
  auto dx = at::empty_like(x_ND);
  // Sums over rows: the CUDA kernel adds up blocks of rows in float32 first.
  const auto dim = x_ND.size(1);
  const auto dgamma = at::empty({dim}, x_ND.options()), dbeta = at::empty({dim}, x_ND.options());
  if (again != nullptr) {
    NormResult once_more;
    once_more.sum_ND = x_ND;
    simulated_layer_norm(once_more);
    again->out_ND = once_more.out_ND;
  }
  if (grads.y_bias_D != nullptr) grads.y_bias_D->add_(column_sums(dx));
  return dx;
}

void simulated_dropout(const at::Tensor& x_ND) {
  // Made on the host in float32, narrowed there, and copied.
  const auto on_device = at::empty_like(x_ND);
  const MemoryScope scope(MemoryCategory::activations, true);
  const auto mask = at::empty(x_ND.sizes(), x_ND.options().dtype(at::kFloat));
  const auto narrowed = at::empty_like(x_ND);
}

at::Tensor simulated_log_softmax(const at::Tensor& x_NV) {
  // Half is read as it is, bfloat16 is widened first; the kernel reads rows that lie one after the other.
  if (x_NV.scalar_type() == at::kBFloat16)
    return simulated_log_softmax(at::empty(x_NV.sizes(), x_NV.options().dtype(at::kFloat)));
  auto out = at::empty(x_NV.sizes(), x_NV.options().dtype(at::kFloat));
  if (!x_NV.is_contiguous()) const auto packed = at::empty(x_NV.sizes(), x_NV.options());
  return out;
}

at::Tensor column_sums(const at::Tensor& x_ND) {
  if (!simulating_cuda()) return x_ND.sum(at::IntArrayRef{0}, false, at::kFloat);
  auto out = at::empty({x_ND.size(1)}, x_ND.options().dtype(at::kFloat));
  if (const auto room = column_sum_room(x_ND.size(0), x_ND.size(1)); room.bytes > 0) {
    const MemoryScope scope(MemoryCategory::workspace);
    const auto bytes = x_ND.options().dtype(at::kByte);
    const auto partial_sums = at::empty({room.bytes}, bytes);
    const auto semaphores = at::empty({room.semaphore_bytes}, bytes);
  }
  return out;
}

}  // namespace fsdp::ops::detail
