#include "lib/bf16/bf16_gemm.hpp"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/verbose_wrapper.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include "lib/base/types/elapsed.hpp"
#include "lib/compute/ops/products/gemm.hpp"
#include "lib/compute/ops/products/wide_product.hpp"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using Product = std::function<void(at::Tensor& out, const at::Tensor& a, const at::Tensor& b)>;

/// Disables TF32, so that bf16 is compared with full float32.
class FullFloat32 {
 public:
  FullFloat32() : before_(at::globalContext().float32MatmulPrecision()) {
    at::globalContext().setFloat32MatmulPrecision("highest");
  }
  FullFloat32(const FullFloat32&) = delete;
  FullFloat32& operator=(const FullFloat32&) = delete;
  ~FullFloat32() {
    const char* before = "highest";
    if (before_ == at::Float32MatmulPrecision::HIGH) before = "high";
    if (before_ == at::Float32MatmulPrecision::MEDIUM) before = "medium";
    at::globalContext().setFloat32MatmulPrecision(before);
  }

 private:
  at::Float32MatmulPrecision before_;
};

/// Times one kind of product repeatedly.
class Timer {
 public:
  Timer(c10::Device device, c10::ScalarType type, Product product, const std::function<void()>& synchronize)
      : options_(at::TensorOptions().dtype(type).device(device)),
        product_(std::move(product)),
        synchronize_(synchronize) {}

  /// Doubles the matrix size until the device is busy and a product takes `seconds`.
  void find_size(double seconds, std::int64_t largest) {
    std::int64_t size = std::min<std::int64_t>(options_.device().is_cpu() ? 256 : 1024, largest);
    prepare(size);
    for (; size * 2 <= largest && shortest_ < seconds; prepare(size)) size *= 2;
  }

  void repeat(double seconds) {
    const auto start = Clock::now();
    do {
      const auto one = Clock::now();
      product_(out_, a_, b_);
      synchronize_();
      shortest_ = std::min(shortest_, seconds_since(one));
    } while (seconds_since(start) < seconds);
  }

  std::int64_t size() const { return out_.size(0); }
  double tflops() const {
    const auto n = static_cast<double>(size());
    return 2 * n * n * n / shortest_ / 1e12;
  }

 private:
  /// \param size  the first, or twice the one before
  void prepare(std::int64_t size) {
    // Random values, because a GPU draws less power and runs faster on constants. A processor makes random values more
    // slowly than it multiplies them: those of the first size serve again.
    a_ = a_.defined() ? a_.repeat({2, 2}) : at::randn({size, size}, options_);
    b_ = b_.defined() ? b_.repeat({2, 2}) : at::randn({size, size}, options_);
    out_ = at::empty({size, size}, options_);
    product_(out_, a_, b_);  // warm-up: the first call selects the kernel
    synchronize_();
    shortest_ = 1e9;
    repeat(0);
  }

  at::TensorOptions options_;
  Product product_;
  const std::function<void()>& synchronize_;
  at::Tensor a_, b_, out_;
  double shortest_ = 1e9;
};

/// Redirects stdout to memory for the lifetime of the object.
class StdoutCapture {
 public:
  StdoutCapture() {
    std::fflush(stdout);
    memory_ = ::memfd_create("stdout", MFD_CLOEXEC);
    saved_ = ::dup(STDOUT_FILENO);
    active_ = memory_ >= 0 && saved_ >= 0 && ::dup2(memory_, STDOUT_FILENO) >= 0;
  }
  StdoutCapture(const StdoutCapture&) = delete;
  StdoutCapture& operator=(const StdoutCapture&) = delete;
  ~StdoutCapture() {
    restore();
    if (memory_ >= 0) ::close(memory_);
    if (saved_ >= 0) ::close(saved_);
  }

  bool active() const { return active_; }

  /// Ends the capture. \return what was printed
  std::string text() {
    restore();
    std::string all;
    std::array<char, 4096> block{};
    ::lseek(memory_, 0, SEEK_SET);
    for (ssize_t got = 0; (got = ::read(memory_, block.data(), block.size())) > 0;) {
      all.append(block.data(), static_cast<std::size_t>(got));
    }
    return all;
  }

 private:
  void restore() {
    if (!active_) return;
    std::fflush(stdout);
    ::dup2(saved_, STDOUT_FILENO);
    active_ = false;
  }

  int memory_ = -1;
  int saved_ = -1;
  bool active_ = false;
};

}  // namespace

GemmFacts measure_gemm(c10::Device device, const std::function<void()>& synchronize, const GemmBudget& budget) {
  const FullFloat32 full_float32;
  const Product training = [&](at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
    device.is_cpu() ? host_product(out, a, b, false) : static_cast<void>(at::mm_out(out, a, b));
  };
  const Product aten = [](at::Tensor& out, const at::Tensor& a, const at::Tensor& b) { at::mm_out(out, a, b); };
  constexpr int kRounds = 6;
  GemmFacts facts;
  try {
    std::vector<Timer> timers;
    timers.emplace_back(device, at::kBFloat16, training, synchronize);
    timers.emplace_back(device, at::kFloat, training, synchronize);
    timers.emplace_back(device, at::kFloat, aten, synchronize);
    if (device.is_cpu()) timers.emplace_back(device, at::kBFloat16, aten, synchronize);
    for (auto& timer : timers) timer.find_size(budget.seconds_per_type / 64, budget.largest_size);
    // The kinds alternate, so that a disturbance affects all of them.
    for (int round = 0; round < kRounds; ++round) {
      for (auto& timer : timers) timer.repeat(budget.seconds_per_type / kRounds);
    }
    facts.bf16_tflops = timers[0].tflops();
    facts.float32_tflops = timers[1].tflops();
    facts.float32_aten_tflops = timers[2].tflops();
    facts.size = timers[0].size();
    if (device.is_cpu()) {
      facts.bf16_aten_tflops = timers[3].tflops();
      facts.implementation = onednn_bf16_implementation();
      facts.widened = is_upcast(at::kBFloat16);
    }
  } catch (const c10::Error& error) {
    facts.failure = error.what_without_backtrace();
  } catch (const std::bad_alloc&) {
    facts.failure = "out of memory";
  }
  return facts;
}

std::string check_products(c10::Device device, const std::function<void()>& synchronize, int checks) {
  const std::int64_t n = device.is_cpu() ? 512 : 4096;
  const auto factor = [&](double step) {
    const auto whole = at::arange(n * n, at::TensorOptions(at::kFloat).device(device)).mul_(step);
    return whole.sin_().view({n, n}).to(at::kBFloat16);
  };
  try {
    const auto a = factor(0.7), b = factor(1.3);
    auto first = at::empty({n, n}, a.options()), again = at::empty({n, n}, a.options());
    const auto multiply = [&](at::Tensor& out) {
      device.is_cpu() ? host_product(out, a, b, false) : static_cast<void>(at::mm_out(out, a, b));
      synchronize();
    };
    multiply(first);
    for (int number = 0; number < checks; ++number) {
      multiply(again);
      if (at::equal(first, again)) continue;
      const auto count = first.ne(again).sum().item<std::int64_t>();
      return fmt::format("{} of {} elements differ when the same {} x {} product is repeated (check {} of {})", count,
                         n * n, n, n, number + 1, checks);
    }
  } catch (const c10::Error&) {  // measure_gemm() tells why
  } catch (const std::bad_alloc&) {
  }
  return "";
}

namespace detail {

std::string implementation_of_verbose(std::string_view text) {
  // Format: onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:...
  constexpr std::string_view kExecution = ",exec,cpu,matmul,";
  const auto at = text.rfind(kExecution);
  if (at == std::string_view::npos) return "";
  text.remove_prefix(at + kExecution.size());
  return std::string(text.substr(0, text.find_first_of(",\n")));
}

}  // namespace detail

std::string onednn_bf16_implementation() {
  const auto a = at::ones({256, 256}, at::kBFloat16);
  StdoutCapture capture;
  if (!capture.active()) return "";
  torch::verbose::_mkldnn_set_verbose(1);
  at::mm(a, a);
  torch::verbose::_mkldnn_set_verbose(0);
  return detail::implementation_of_verbose(capture.text());
}

}  // namespace fsdp
