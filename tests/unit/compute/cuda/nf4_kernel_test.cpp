// The kernel's source on the CPU (tests/support/emulated_cuda.hpp), with threads in three orders, against the host's
// kernel, bit for bit.
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <stdexcept>

#include "lib/compute/ops/nf4.hpp"
#include "lib/compute/ops/ops.hpp"
#include "tests/support/emulated_ops.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using emulated::kOrders;
using emulated::Order;

namespace {

at::Tensor dequantized(const Nf4Matrix& m, at::ScalarType dtype, Order order) {
  return test::EmulatedOps(order).dequantize(m, dtype);
}

void check(const Nf4Matrix& m) {
  for (const auto order : kOrders) {
    CAPTURE(static_cast<int>(order));
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      CHECK(test::same_bits(dequantized(m, dtype, order), host_ops().dequantize(m, dtype)));
  }
}

/// A kernel that lacks a barrier: its results must depend on the order, otherwise the emulation proves nothing.
void without_barrier(float* out, const float* in) {
  __shared__ float room[64];
  room[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = room[63 - threadIdx.x];
}

void with_barrier(float* out, const float* in) {
  __shared__ float room[64];
  room[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = room[63 - threadIdx.x];
}

void some_wait(int /*unused*/) {
  if (threadIdx.x < 40)
    __syncthreads();
  else
    __shfl_xor_sync(0xffffffffu, 1, 1);
  __syncthreads();
}

at::Tensor run_in(Order order, void (*kernel)(float*, const float*)) {
  const auto in = at::randn({64});
  auto out = at::zeros({64});
  emulated::launch({1}, {64}, order, kernel, out.data_ptr<float>(), in.const_data_ptr<float>());
  return out.sub(in.flip({0}));
}

}  // namespace

TEST_SUITE("cuda/nf4 kernel") {
  TEST_CASE("matrices of any size, plain and nested scales, three dtypes") {
    for (const auto& [rows, columns] : {std::pair(1, 1), {3, 50}, {7, 33}, {37, 10}, {172, 64}, {65, 1031}}) {
      CAPTURE(rows);
      CAPTURE(columns);
      const auto blocks = quantize_nf4(at::randn({rows * columns}));
      const auto nested = quantize_scales(blocks.absmax);
      check({blocks.codes, blocks.absmax, {}, {}, rows, columns});
      check({blocks.codes, nested.codes, nested.absmax, nested.offset, rows, columns});
    }
  }

  TEST_CASE("the emulation detects a missing barrier and one that not all threads reach") {
    for (const auto order : kOrders) CHECK(run_in(order, with_barrier).abs().max().item<float>() == 0);
    CHECK(run_in(Order::forward, without_barrier).abs().max().item<float>() > 0);
    CHECK_THROWS_AS(emulated::launch({1}, {64}, Order::forward, some_wait, 0), std::logic_error);
  }
}
