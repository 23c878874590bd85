#include "lib/train/initialize.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <numbers>

#include "lib/base/fnv1a.hpp"
#include "lib/base/splitmix64.hpp"

namespace fsdp {
namespace {

/// Elements [first, first + n) of a parameter's normal stream. Elements 2k and 2k + 1 share a pair of uniforms.
void fill_normal(float* out, std::int64_t first, std::int64_t n, std::uint64_t key, double std) {
  at::parallel_for(0, n, 16384, [&](std::int64_t b, std::int64_t e) {
    for (std::int64_t i = b; i < e; ++i) {
      const auto element = static_cast<std::uint64_t>(first + i);
      const auto pair = element & ~std::uint64_t{1};
      const double u1 = (static_cast<double>(splitmix64(key + pair) >> 11) + 1.0) * 0x1p-53;
      const double u2 = static_cast<double>(splitmix64(key + pair + 1) >> 11) * 0x1p-53;
      const double radius = std::sqrt(-2.0 * std::log(u1));
      const double angle = 2.0 * std::numbers::pi * u2;
      out[i] = static_cast<float>(std * radius * ((element & 1) == 0 ? std::cos(angle) : std::sin(angle)));
    }
  });
}

}  // namespace

void initialize_parameters(ModelRuntime& runtime, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  auto& engine = runtime.engine();
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    const auto& spec = runtime.decoder().parameters[i];
    const auto range = engine.range(i);
    if (range.num_rows == 0) continue;
    auto rows = engine.master_weight(i).narrow(0, 0, range.num_rows);
    if (spec.init != Init::normal) {
      rows.fill_(spec.init == Init::ones ? 1.0 : 0.0);
      continue;
    }
    auto values = at::empty(rows.sizes(), at::kFloat);
    const auto row_elements = engine.layout(i).row_elements();
    fill_normal(values.data_ptr<float>(), range.first_row * row_elements, values.numel(),
                splitmix64(seed) ^ fnv1a(spec.name), spec.std);
    rows.copy_(values);
  }
  engine.sync_parameters();
}

}  // namespace fsdp
