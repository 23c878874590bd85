// Products of every layout that the models use, against the same product in double.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "lib/tensor/gemm.hpp"
#include "lib/tensor/host_allocator.hpp"
#include "lib/tensor/memory_recorder.hpp"

namespace fsdp {
namespace {

double error(const at::Tensor& found, const at::Tensor& a, const at::Tensor& b) {
  const auto exact = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
  const auto apart = (found.to(at::kDouble) - exact).norm().item<double>();
  return apart / std::max(exact.norm().item<double>(), 1e-30);
}

struct Case {
  at::ScalarType dtype;
  double tolerance;  // the rounding of the sums: a few units in the last place of the type
};
const Case kCases[] = {{at::kFloat, 1e-6}, {at::kBFloat16, 6e-3}};

TEST_CASE("gemm multiplies whatever the layout of its operands") {
  for (const auto& [dtype, tolerance] : kCases) {
    for (const auto& [m, k, n] :
         {std::array<std::int64_t, 3>{7, 33, 65}, {64, 255, 255}, {1, 16, 48}, {510, 64, 1021}}) {
      const auto a = at::randn({m, k}).to(dtype);
      const auto b = at::randn({k, n}).to(dtype);
      const auto a_turned = a.t().contiguous().t();
      const auto b_turned = b.t().contiguous().t();
      const auto wide = at::randn({m, 3 * k}).to(dtype);
      CHECK(error(gemm(a, b), a, b) < tolerance);
      CHECK(error(gemm(a, b_turned), a, b) < tolerance);
      CHECK(error(gemm(a_turned, b), a, b) < tolerance);
      CHECK(error(gemm(a_turned, b_turned), a, b) < tolerance);
      CHECK(error(gemm(wide.narrow(1, k, k), b), wide.narrow(1, k, k), b) < tolerance);

      auto out = at::empty({m, n}, a.options());
      gemm_out(out, a, b);
      CHECK(error(out, a, b) < tolerance);
      gemm_add(out, a, b);
      CHECK(error(out / 2, a, b) < 2 * tolerance);
    }
  }
}

TEST_CASE("gemm_out multiplies batches that lie in strided views, into strided views") {
  for (const auto& [dtype, tolerance] : kCases) {
    const std::int64_t heads = 4, length = 255, size = 64;
    const auto qkv = at::randn({length, 3 * heads * size}).to(dtype);
    const auto part = [&](std::int64_t which) {
      return qkv.as_strided({heads, length, size}, {size, 3 * heads * size, 1}, which * heads * size);
    };
    auto scores = at::empty({heads, length, length}, qkv.options());
    gemm_out(scores, part(0), part(1).transpose(1, 2));
    CHECK(error(scores, part(0), part(1).transpose(1, 2)) < tolerance);
    auto out_ND = at::zeros({length, heads * size}, qkv.options());
    auto out = out_ND.view({length, heads, size}).transpose(0, 1);
    gemm_out(out, scores, part(2));
    CHECK(error(out, scores, part(2)) < tolerance);
  }
}

TEST_CASE("empty products") {
  const auto a = at::zeros({0, 8});
  const auto b = at::randn({8, 5});
  CHECK(gemm(a, b).sizes() == at::IntArrayRef{0, 5});
  auto out = at::randn({4, 5});
  const auto before = out.clone();
  gemm_add(out, at::zeros({4, 0}), at::zeros({0, 5}));
  CHECK(out.equal(before));
  gemm_out(out, at::zeros({4, 0}), at::zeros({0, 5}));
  CHECK(out.equal(at::zeros({4, 5})));
}

/// The most that `product` takes at once beside what is there, on the real allocator or by a recorder.
template <typename Product>
std::int64_t room_of(const Product& product, at::ScalarType dtype, bool simulated) {
  std::optional<MemoryRecorder> recorder;
  if (simulated) recorder.emplace(SimulatedTraits{.threads = at::get_num_threads()});
  const auto options = at::TensorOptions(dtype).device(simulated ? at::kMeta : at::kCPU);
  const auto a = at::zeros({3 * 96, 128}, options), b = at::zeros({3 * 128, 80}, options);
  auto out = at::zeros({3 * 96, 80}, options);
  if (!simulated) {
    product(out, a, b);  // what is only made once
    reset_host_memory_peak();
    const auto before = host_memory_stats().current_bytes;
    product(out, a, b);
    return host_memory_stats().peak_bytes - before;
  }
  const auto first = recorder->log().records.size();
  product(out, a, b);
  std::int64_t now = 0, most = 0;
  for (std::size_t i = first; i < recorder->log().records.size(); ++i) {
    now += recorder->log().records[i].bytes;
    most = std::max(most, now);
  }
  return most;
}

TEST_CASE("a simulated product takes the room of the real one, to the byte") {
  install_host_allocator();
  const auto plain = [](at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
    gemm_out(out, a, b.narrow(0, 0, 128));
  };
  const auto turned = [](at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
    auto part = out.narrow(0, 0, 128);
    gemm_add(part, a.t(), out.clone());
    gemm_add(part, b.narrow(0, 0, 128), b.narrow(0, 0, 80));
  };
  const auto batches = [](at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
    auto target = out.view({96, 3, 80}).transpose(0, 1);
    gemm_out(target, a.view({96, 3, 128}).transpose(0, 1), b.view({3, 128, 80}));
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    CAPTURE(dtype);
    CHECK(room_of(plain, dtype, true) == room_of(plain, dtype, false));
    CHECK(room_of(turned, dtype, true) == room_of(turned, dtype, false));
    CHECK(room_of(batches, dtype, true) == room_of(batches, dtype, false));
  }
}

TEST_CASE("a product has the same bits each time") {
  const auto a = at::randn({300, 200});
  const auto b = at::randn({200, 100});
  const auto first = gemm(a, b);
  for (int i = 0; i < 5; ++i) CHECK(gemm(a.clone(), b).equal(first));
}

}  // namespace
}  // namespace fsdp
