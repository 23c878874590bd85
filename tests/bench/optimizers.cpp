// Compares optimizer passes with the memory bandwidth: each pass takes turns with a plain pass that reads and writes as
// many bytes and computes next to nothing, so both see the same load. Prints GB/s and the ratio with its spread.
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "lib/compute/kernels/kernels.hpp"
#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/tensor/parallel.hpp"
#include "lib/engine/optim/optimizer.hpp"

namespace fsdp {
namespace {

// 118 MiB per float32 tensor, deliberately not a power of two: arrays whose addresses differ by 128 MiB and a page
// collide in the L1 caches of AMD's processors, which makes every pass two to four times slower.
constexpr std::int64_t kRows = 7568, kColumns = 4096, kElements = kRows * kColumns;
constexpr int kRounds = 9;

/// Number of values read and written per element: the weight and its states. The gradient is only read.
struct Streams {
  int wide, half, byte;  ///< values of 4, 2 and 1 bytes
  std::int64_t bytes() const { return 2 * (4 * wide + 2 * half + byte) + 4; }
};

struct Pass {
  const char* name;
  OptimizerOptions options;
  Streams streams;
};

OptimizerOptions of(const std::string& kind) {
  OptimizerOptions options;
  options.kind = kind;
  options.eight_bit.everything = true;
  return options;
}

OptimizerOptions small_moments(bool kahan) {
  auto options = of("anyprecision");
  options.momentum_dtype = at::kBFloat16;
  options.kahan = kahan;
  return options;
}

OptimizerOptions with_momentum() {
  auto options = of("sgd");
  options.momentum = 0.9;
  return options;
}

std::vector<Pass> passes() {
  return {{"adamw", of("adamw"), {3, 0, 0}},
          {"anyprecision", of("anyprecision"), {2, 1, 0}},
          {"anyprecision, bf16 moments", small_moments(false), {1, 2, 0}},
          {"the same with --kahan", small_moments(true), {1, 3, 0}},
          {"adamw8bit", of("adamw8bit"), {1, 0, 2}},
          {"lion8bit", of("lion8bit"), {1, 0, 1}},
          {"lion", of("lion"), {2, 0, 0}},
          {"sgd", of("sgd"), {1, 0, 0}},
          {"sgd --momentum 0.9", with_momentum(), {2, 0, 0}},
          {"adafactor, as if one pass", of("adafactor"), {1, 0, 0}}};
}

template <typename Body>
double seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Reads a gradient and updates a weight and states of the same widths by one addition each.
class PlainPass {
 public:
  explicit PlainPass(const Streams& streams) : streams_(streams), grad_(at::ones({kElements})) {
    for (int i = 0; i < streams.wide; ++i) wide_.push_back(at::ones({kElements}));
    for (int i = 0; i < streams.half; ++i) half_.push_back(at::ones({kElements}, at::kShort));
    for (int i = 0; i < streams.byte; ++i) byte_.push_back(at::ones({kElements}, at::kByte));
  }

  void run() {
    using Loop = void (PlainPass::*)(std::int64_t, std::int64_t) const;
    const auto [wide, half, byte] = streams_;
    const Loop chosen = half == 3   ? &PlainPass::loop<1, 3, 0>
                        : half == 2 ? &PlainPass::loop<1, 2, 0>
                        : half == 1 ? &PlainPass::loop<2, 1, 0>
                        : byte == 2 ? &PlainPass::loop<1, 0, 2>
                        : byte == 1 ? &PlainPass::loop<1, 0, 1>
                        : wide == 3 ? &PlainPass::loop<3, 0, 0>
                        : wide == 2 ? &PlainPass::loop<2, 0, 0>
                                    : &PlainPass::loop<1, 0, 0>;
    parallel_for(kElements, 32768, [&](std::int64_t begin, std::int64_t end) { (this->*chosen)(begin, end); });
  }

 private:
  template <int kWide, int kHalf, int kByte>
  void loop(std::int64_t begin, std::int64_t end) const {
    const auto at = [](const std::vector<at::Tensor>& tensors, std::size_t s) {
      return s < tensors.size() ? tensors[s].data_ptr() : nullptr;
    };
    auto *w0 = static_cast<float*>(at(wide_, 0)), *w1 = static_cast<float*>(at(wide_, 1));
    auto* w2 = static_cast<float*>(at(wide_, 2));
    auto *h0 = static_cast<std::int16_t*>(at(half_, 0)), *h1 = static_cast<std::int16_t*>(at(half_, 1));
    auto* h2 = static_cast<std::int16_t*>(at(half_, 2));
    auto *b0 = static_cast<std::uint8_t*>(at(byte_, 0)), *b1 = static_cast<std::uint8_t*>(at(byte_, 1));
    const auto* grad = grad_.const_data_ptr<float>();
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float g = grad[i], x0 = w0[i];
      const float x1 = kWide > 1 ? w1[i] : 0, x2 = kWide > 2 ? w2[i] : 0;
      const auto y0 = kHalf > 0 ? h0[i] : 0, y1 = kHalf > 1 ? h1[i] : 0, y2 = kHalf > 2 ? h2[i] : 0;
      const auto z0 = kByte > 0 ? b0[i] : 0, z1 = kByte > 1 ? b1[i] : 0;
      w0[i] = x0 + g;
      if constexpr (kWide > 1) w1[i] = x1 + g;
      if constexpr (kWide > 2) w2[i] = x2 + g;
      if constexpr (kHalf > 0) h0[i] = static_cast<std::int16_t>(y0 ^ 1);
      if constexpr (kHalf > 1) h1[i] = static_cast<std::int16_t>(y1 ^ 1);
      if constexpr (kHalf > 2) h2[i] = static_cast<std::int16_t>(y2 ^ 1);
      if constexpr (kByte > 0) b0[i] = static_cast<std::uint8_t>(z0 ^ 1);
      if constexpr (kByte > 1) b1[i] = static_cast<std::uint8_t>(z1 ^ 1);
    }
  }

  Streams streams_;
  at::Tensor grad_;
  std::vector<at::Tensor> wide_, half_, byte_;
};

void measure(const Pass& pass) {
  const CpuOps ops;
  const std::vector<at::Tensor> gradients{at::randn({kRows, kColumns})};
  const auto optimizer = make_optimizer({ops, {whole_param(at::randn({kRows, kColumns}))}, pass.options});
  PlainPass plain(pass.streams);
  const auto step = [&] { optimizer->step(gradients, 1e-4, 1.0); };
  step();
  plain.run();
  std::vector<double> ratios, speeds, plain_speeds;
  const double gigabytes = static_cast<double>(kElements * pass.streams.bytes()) * 1e-9;
  for (int round = 0; round < kRounds; ++round) {
    speeds.push_back(gigabytes / seconds(step));
    plain_speeds.push_back(gigabytes / seconds([&] { plain.run(); }));
    ratios.push_back(speeds.back() / plain_speeds.back());
  }
  for (auto* values : {&ratios, &speeds, &plain_speeds}) std::sort(values->begin(), values->end());
  fmt::print("{:28} {:5.1f} GB/s   plain {:5.1f} GB/s   ratio {:.2f} ({:.2f} to {:.2f})   {:5.2f} ns an element\n",
             pass.name, speeds[kRounds / 2], plain_speeds[kRounds / 2], ratios[kRounds / 2], ratios.front(),
             ratios.back(), gigabytes / speeds[kRounds / 2] * 1e9 / static_cast<double>(kElements));
}

}  // namespace
}  // namespace fsdp

int main() {
  fmt::print("kernels for {}; {} threads, {} elements, {} rounds: median (least to most)\n",
             fsdp::kernels::table().name, at::get_num_threads(), fsdp::kElements, fsdp::kRounds);
  for (const auto& pass : fsdp::passes()) fsdp::measure(pass);
  return EXIT_SUCCESS;
}
