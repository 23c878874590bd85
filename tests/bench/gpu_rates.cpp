// Rates of a GPU, for scripts/gpu-check speed: matrix products of a block's shapes, this project's kernels, copies, and
// the host's time per launch. Prints one line each and judges nothing.
//
// "rate: NAME = VALUE UNIT". GB/s counts the bytes that a pass must read and write, once each. A pass takes turns on
// several sets of buffers, so that none is still in the GPU's cache (50 MB on an H100) when its turn comes again.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lib/engine/collectives/device_backend.hpp"
#include "lib/ranks/process_group.hpp"

namespace {

using namespace fsdp;

constexpr std::int64_t kTokens = 8192;
constexpr std::int64_t kCold = std::int64_t{1} << 28;  // bytes after which nothing is left in a cache

/// Shapes of a block: width, and rows of the weights q|k|v, attention output, first and second product of the
/// feed-forward part.
struct Shapes {
  const char* name;
  std::int64_t width, attention, inner, feed_forward;
};

class Rates {
 public:
  explicit Rates(std::shared_ptr<DeviceBackend> backend) : backend_(std::move(backend)) {
    backend_->set_device(0);
    ops_ = backend_->make_ops(0);
  }

  const Ops& ops() const { return *ops_; }
  DeviceBackend& backend() const { return *backend_; }

  at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16) const {
    return at::randn(sizes, at::TensorOptions(dtype).device(ops_->device())).mul_(0.02);
  }
  at::Tensor floats(std::int64_t n, at::ScalarType dtype = at::kFloat) const {
    return at::full({n}, 1e-3, at::TensorOptions(dtype).device(ops_->device()));
  }
  at::Tensor ids(std::int64_t n, std::int64_t below) const {
    return at::randint(below, {n}, at::TensorOptions(at::kInt).device(ops_->device()));
  }

  /// Seconds of one call, of as many as take 20 ms together.
  double seconds(const std::function<void()>& body) const {
    body();
    const auto of = [&](int calls) {
      backend_->synchronize(0);
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) body();
      backend_->synchronize(0);
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls;
    };
    return of(std::clamp(static_cast<int>(0.02 / std::max(of(2), 1e-6)), 3, 200));
  }

  /// Seconds of one call in the second of two seconds, when the clock has settled at the limit of power.
  double sustained_seconds(const std::function<void()>& body) const {
    using Seconds = std::chrono::duration<double>;
    const int calls = std::max(1, static_cast<int>(0.1 / seconds(body)));
    const auto begin = std::chrono::steady_clock::now();
    auto settled = begin, now = begin;
    int counted = 0;
    while (Seconds(now - begin).count() < 2) {
      for (int i = 0; i < calls; ++i) body();
      backend_->synchronize(0);
      now = std::chrono::steady_clock::now();
      if (Seconds(now - begin).count() < 1) {
        settled = now;
      } else {
        counted += calls;
      }
    }
    return Seconds(now - settled).count() / counted;
  }

  static void print(const std::string& name, double value, const char* unit) {
    if (!(value > 0)) throw std::runtime_error(name + ": the time of a call could not be measured");
    std::printf("rate: %s = %.6g %s\n", name.c_str(), value, unit);
    std::fflush(stdout);
  }
  void product(const std::string& name, std::int64_t m, std::int64_t n, std::int64_t k,
               const std::function<void()>& body) const {
    print(name, 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / seconds(body) / 1e12,
          "TFLOP/s");
  }
  void kernel(const std::string& name, std::int64_t bytes, const std::function<void()>& body) const {
    print(name, static_cast<double>(bytes) / seconds(body) / 1e9, "GB/s");
  }
  /// `make` returns a pass over buffers of its own, which also keeps what it allocates until its next turn.
  template <class Make>
  void cold_kernel(const std::string& name, std::int64_t bytes, const Make& make) const {
    std::vector<std::function<void()>> passes;
    for (std::int64_t made = 0; passes.size() < 2 || made < kCold; made += bytes) passes.emplace_back(make());
    for (auto& pass : passes) pass();
    std::size_t turn = 0;
    kernel(name, bytes, [&] { passes[turn++ % passes.size()](); });
  }

 private:
  std::shared_ptr<DeviceBackend> backend_;
  std::unique_ptr<Ops> ops_;
};

constexpr std::int64_t kSustained = 22016;  // rows of the one product that is also measured for seconds

/// The four products of a forward, and the eight of a backward with gradients of weights in bf16 and float32.
void products_of(const Rates& rates, const Shapes& shapes) {
  const auto& ops = rates.ops();
  struct Weight {
    const char* name;
    std::int64_t out, in;
  };
  for (const Weight& w : {Weight{.name = "q|k|v", .out = shapes.attention, .in = shapes.width},
                          Weight{.name = "attention out", .out = shapes.width, .in = shapes.width},
                          Weight{.name = "inner", .out = shapes.inner, .in = shapes.width},
                          Weight{.name = "down", .out = shapes.width, .in = shapes.feed_forward}}) {
    const auto x = rates.random({kTokens, w.in}), weight = rates.random({w.out, w.in}),
               grad = rates.random({kTokens, w.out});
    const auto name = [&](const char* what) { return std::string(shapes.name) + ", " + w.name + ", " + what; };
    auto out = at::empty_like(grad);
    auto dx = at::empty_like(x);
    const auto forward = [&] { ops.linear_into(out, x, weight); };
    rates.product(name("forward"), kTokens, w.out, w.in, forward);
    if (w.out == kSustained) {
      const auto operations = 2.0 * static_cast<double>(kTokens * w.out) * static_cast<double>(w.in);
      Rates::print(name("forward, sustained"), operations / rates.sustained_seconds(forward) / 1e12, "TFLOP/s");
    }
    rates.product(name("input's gradient"), kTokens, w.out, w.in, [&] { ops.linear_backward_into(dx, grad, weight); });
    for (const auto dtype : {at::kBFloat16, at::kFloat}) {
      for (const bool adds : {false, true}) {
        GradSlot slot{.grad = at::zeros({w.out, w.in}, weight.options().dtype(dtype)), .written = adds};
        const std::string to = dtype == at::kFloat ? "weight's gradient, float32" : "weight's gradient, bf16";
        rates.product(name((to + (adds ? ", added" : "")).c_str()), kTokens, w.out, w.in, [&] {
          slot.written = adds;
          ops.weight_grad(&slot, grad, x);
        });
      }
    }
  }
}

void attention_of(const Rates& rates, std::int64_t rows, std::int64_t length, std::int64_t heads, std::int64_t kv_heads,
                  std::int64_t size) {
  const auto& ops = rates.ops();
  const AttentionShape shape{
      .rows = rows, .query_length = length, .heads = heads, .head_size = size, .kv_heads = kv_heads};
  const auto qkv = rates.random({rows * length, shape.packed_width()}),
             grad = rates.random({rows * length, heads * size});
  const auto name = "attention, " + std::to_string(rows) + " x " + std::to_string(length) + ", " +
                    std::to_string(heads) + " heads of " + std::to_string(kv_heads);
  // Causal: half of two products of [length, size] and [size, length] per head; five in the backward pass.
  const auto k = length * size / 2;
  rates.product(name + ", forward", 2 * rows * heads, length, k,
                [&] { static_cast<void>(ops.attention(qkv, shape, nullptr)); });
  const auto both = rates.seconds([&] {
    std::unique_ptr<AttentionState> state;
    const auto out = ops.attention(qkv, shape, &state);
    static_cast<void>(ops.attention_backward(grad, qkv, out, shape, std::move(state)));
  });
  Rates::print(name + ", forward and backward", 2.0 * 7 * static_cast<double>(rows * heads * length * k) / both / 1e12,
               "TFLOP/s");
}

/// Measures the kernels of GPT's blocks.
void gpt_kernels(const Rates& rates, std::int64_t width) {
  const auto& ops = rates.ops();
  const auto row = 2 * kTokens * width, inner_row = 4 * row;  // bytes in bf16
  const auto name = [&](const char* what) { return what + (", " + std::to_string(width)); };
  const auto slot_of = [&](std::int64_t n) { return GradSlot{.grad = rates.floats(n), .written = true}; };
  const auto rows = [&](std::int64_t columns) { return rates.random({kTokens, columns}); };
  const auto gamma = rates.random({width}), beta = rates.random({width}), bias = rates.random({4 * width});
  rates.cold_kernel(name("LayerNorm and residual"), 4 * row, [&] {
    return [&, x = rows(width), y = rows(width), made = NormResult{}]() mutable {
      made = ops.add_layer_norm(x, y, {}, gamma, beta, 1e-5);
    };
  });
  auto of_gamma = slot_of(width), of_beta = slot_of(width), of_dx = slot_of(width), of_bias = slot_of(4 * width);
  rates.cold_kernel(name("LayerNorm backward"), 4 * row, [&] {
    const auto layer = ops.add_layer_norm(rows(width), rows(width), {}, gamma, beta, 1e-5);
    return [&, layer, grad = rows(width), residual = rows(width), made = at::Tensor{}]() mutable {
      made = ops.layer_norm_backward({grad, residual, layer.sum_ND, layer, gamma}, {&of_gamma, &of_beta, &of_dx});
    };
  });
  rates.cold_kernel(name("bias and GELU"), 3 * inner_row, [&] {
    return [&, wide = rows(4 * width), made = at::Tensor{}]() mutable { made = ops.bias_gelu(wide, bias); };
  });
  rates.cold_kernel(name("GELU backward, bias"), 3 * inner_row, [&] {
    return [&, inner = rows(4 * width), wide = rows(4 * width)]() mutable {
      ops.bias_gelu_backward(inner, wide, &of_bias);
    };
  });
  rates.cold_kernel(name("gradient of a bias"), row,
                    [&] { return [&, grad = rows(width)] { ops.bias_grad(&of_dx, grad); }; });
}

void row_kernels(const Rates& rates) {
  const auto& ops = rates.ops();
  constexpr std::int64_t kWidth = 4096, kInner = 11008,
                         kRow = 2 * kTokens * kWidth;  // bytes of [tokens, width] in bf16
  const auto rows = [&](std::int64_t columns) { return rates.random({kTokens, columns}); };
  const auto gamma = rates.random({kWidth});
  rates.cold_kernel("copy", 2 * kRow, [&] { return [x = rows(kWidth), out = rows(kWidth)] { out.copy_(x); }; });
  rates.cold_kernel("RMSNorm and residual", 4 * kRow, [&] {
    return [&, x = rows(kWidth), y = rows(kWidth), made = NormResult{}]() mutable {
      made = ops.add_rms_norm(x, y, {}, gamma, RmsNorm(1e-5));
    };
  });
  GradSlot slot{.grad = at::zeros({kWidth}, gamma.options().dtype(at::kFloat)), .written = true};
  rates.cold_kernel("RMSNorm backward, output again", 5 * kRow, [&] {
    const auto normed = ops.add_rms_norm(rows(kWidth), rows(kWidth), {}, gamma, RmsNorm(1e-5));
    return [&, normed, grad = rows(kWidth), residual = rows(kWidth), out = rows(kWidth),
            made = at::Tensor{}]() mutable {
      NormAgain again{.beta_D = {}, .out_ND = out};
      made = ops.rms_norm_backward({grad, residual, normed.sum_ND, normed, gamma}, {&slot, nullptr, nullptr}, &again);
    };
  });
  const auto table = ops.rope_table(std::vector<float>(64, 0.01F), 512);
  rates.cold_kernel("rotary positions of q and k", 4 * kRow, [&] {
    return [&, qkv = rows(3 * kWidth)]() mutable { ops.rope(qkv, 64, 128, table, {512, 0}, false); };
  });
  constexpr std::int64_t kInnerRow = 2 * kTokens * kInner;
  rates.cold_kernel("SwiGLU", 3 * kInnerRow, [&] {
    return [&, both = rows(2 * kInner), made = at::Tensor{}]() mutable {
      made = ops.gated(GateActivation::silu, both.narrow(1, 0, kInner), both.narrow(1, kInner, kInner));
    };
  });
  rates.cold_kernel("SwiGLU backward", 6 * kInnerRow, [&] {
    return [&, both = rows(2 * kInner), inner = rows(kInner)]() mutable {
      auto gate = both.narrow(1, 0, kInner), up = both.narrow(1, kInner, kInner);
      ops.gated_backward(GateActivation::silu, inner, gate, up);
    };
  });
  const auto keys = at::arange(kTokens, at::TensorOptions(at::kLong).device(ops.device()));
  rates.cold_kernel("dropout", 2 * kRow,
                    [&] { return [&, out = rows(kWidth)]() mutable { ops.dropout(out, keys, 0.1); }; });
}

/// Casts to fp8, which read the matrix twice: for its largest value and for the codes.
void fp8_rates(const Rates& rates) {
  const auto& ops = rates.ops();
  if (!ops.fp8_problem().empty()) return;
  constexpr std::int64_t kWidth = 4096, kInner = 22016, kElements = kTokens * kWidth;
  const auto cast = [&](Fp8Sides sides) {
    return [&, sides] {
      return [&ops, sides, x = rates.random({kTokens, kWidth}), made = Fp8Matrix{}]() mutable {
        made = ops.to_fp8(x, Fp8Format::e4m3, sides);
      };
    };
  };
  rates.cold_kernel("cast to fp8", 5 * kElements, cast(Fp8Sides::rows));
  rates.cold_kernel("cast to fp8, also transposed", 6 * kElements, cast(Fp8Sides::both));
  const auto a = ops.to_fp8(rates.random({kTokens, kWidth}), Fp8Format::e4m3, Fp8Sides::rows),
             b = ops.to_fp8(rates.random({kInner, kWidth}), Fp8Format::e4m3, Fp8Sides::rows);
  auto out = rates.random({kTokens, kInner});
  rates.product("CodeLlama-7b, inner, fp8", kTokens, kInner, kWidth, [&] {
    ops.fp8_product(out, {a.rows_RC, a.inverse}, {b.rows_RC, b.inverse}, Fp8Sums::fast, false);
  });
}

void token_kernels(const Rates& rates) {
  const auto& ops = rates.ops();
  constexpr std::int64_t kWidth = 4096, kVocab = 32016, kRow = 2 * kTokens * kWidth;
  const auto table = rates.random({kVocab, kWidth});
  const auto ids = rates.ids(kTokens, kVocab);
  auto hot = ids.clone();
  hot.narrow(0, 0, kTokens / 2).fill_(7);  // half of the tokens are one id
  auto of_tokens = at::zeros_like(table);
  rates.cold_kernel("embedding", 2 * kRow, [&] {
    return [&, made = at::Tensor{}]() mutable { made = ops.embed(table, {}, ids, {512, 0}); };
  });
  const auto backward = [&](const at::Tensor& of_ids) {
    return [&] {
      return [&, grad = rates.random({kTokens, kWidth})] {
        ops.embed_backward(&of_tokens, nullptr, grad, of_ids, {512, 0});
      };
    };
  };
  rates.cold_kernel("embedding backward", 2 * kRow, backward(ids));
  rates.cold_kernel("embedding backward, half of the tokens equal", 2 * kRow, backward(hot));
  for (const std::int64_t vocab : {32016, 50257}) {
    auto logits = rates.random({kTokens, (vocab + 7) / 8 * 8});
    const auto targets = rates.ids(kTokens, vocab);
    rates.kernel("cross-entropy and its gradient, " + std::to_string(vocab),
                 2 * static_cast<std::int64_t>(logits.nbytes()), [&] {
                   StepSums sum;
                   ops.cross_entropy(sum, logits, targets, vocab, 1.0);
                 });
  }
}

void update_kernels(const Rates& rates) {
  const auto& ops = rates.ops();
  constexpr std::int64_t kElements = std::int64_t{1} << 26;
  AdamWUpdate update;
  update.params = {rates.floats(kElements)};
  update.grads = {rates.floats(kElements)};
  update.exp_avg = {rates.floats(kElements)};
  update.exp_avg_sq = {rates.floats(kElements)};
  update.lr = 1e-3;
  update.step = 1;
  update.beta1 = 0.9;
  update.beta2 = 0.95;
  update.eps = 1e-8;
  const bool decides = ops.decides();
  if (decides) {
    StepToDecide step;
    step.squares = rates.floats(1, at::kDouble);
    step.sums = rates.floats(2, at::kDouble);
    update.decision = ops.decide(step);
    update.cast_params = {rates.floats(kElements, at::kBFloat16)};
  }
  rates.kernel("AdamW", (decides ? 30 : 28) * kElements, [&] { ops.adamw(update); });
  if (!decides) return;
  const GradPart part{update.grads[0], kElements};
  rates.kernel("sum of squares", 4 * kElements, [&] { static_cast<void>(ops.device_sum_squares({&part, 1})); });
}

/// Shapes of CodeLlama-7b's and GPT-2's blocks, 8192 tokens.
void measure_products(const Rates& rates) {
  products_of(rates,
              {.name = "CodeLlama-7b", .width = 4096, .attention = 12288, .inner = 22016, .feed_forward = 11008});
  products_of(rates, {.name = "GPT-2", .width = 768, .attention = 2304, .inner = 3072, .feed_forward = 3072});
  attention_of(rates, 16, 512, 32, 32, 128);
  attention_of(rates, 2, 4096, 32, 8, 128);
  attention_of(rates, 8, 1024, 12, 12, 64);
}

/// Bytes per second, beside a copy's.
void measure_kernels(const Rates& rates) {
  row_kernels(rates);
  gpt_kernels(rates, 768);
  gpt_kernels(rates, 4096);
  token_kernels(rates);
  fp8_rates(rates);
  update_kernels(rates);
}

/// Copies between host and device.
void measure_copies(const Rates& rates) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 28;
  const auto there = at::zeros({kBytes}, at::TensorOptions(at::kByte).device(rates.ops().device()));
  const auto here = at::ones({kBytes}, at::kByte);
  rates.kernel("host to device, pageable", kBytes, [&] { rates.ops().transfer(there, here); });
  rates.kernel("device to host, pageable", kBytes, [&] { rates.ops().transfer(here, there); });
  const auto locked = rates.ops().lock_pages(here);
  if (locked == nullptr) {
    std::printf("rate: pages could not be locked = 0 GB/s\n");
    return;
  }
  const auto start = [&](const at::Tensor& to, const at::Tensor& from) {
    if (const auto transfer = rates.ops().start_transfer(to, from)) transfer->wait();
  };
  rates.kernel("host to device, locked pages", kBytes, [&] { start(there, here); });
  rates.kernel("device to host, locked pages", kBytes, [&] { start(here, there); });
  rates.backend().synchronize(0);
}

/// The host's time per launch and per group of collectives.
void measure_launches(const Rates& rates) {
  const auto& ops = rates.ops();
  auto x = rates.random({16, 256}), out = rates.random({16, 256});
  const auto weight = rates.random({256, 256}), bias = rates.random({256});
  // Fewer launches than a stream's queue takes, so that the host never waits for the device.
  const auto host_us = [&](const std::string& name, int calls, const std::function<void()>& body) {
    body();
    rates.backend().synchronize(0);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) body();
    const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
    rates.backend().synchronize(0);
    Rates::print(name, spent.count() / calls, "us");
  };
  host_us("launch of a kernel of this project", 400, [&] { ops.add_bias(x, {}, bias); });
  host_us("launch of a product", 400, [&] { ops.linear_into(out, x, weight); });
  host_us("launch of an operator of PyTorch", 400, [&] { x.add_(1); });
  const auto group = make_single_group();
  const auto collectives = rates.backend().make_collectives(*group, 0);
  const TensorGather gather{.shard = x, .full = at::empty_like(x)};
  host_us("group of collectives", 12, [&] { collectives->all_gather(std::span(&gather, 1))->wait(); });
}

}  // namespace

int main() {
  constexpr int kSkipped = 77;
  std::string why_not;
  auto backend = load_cuda_backend(&why_not);
  if (backend == nullptr) {
    std::printf("skipped: %s\n", why_not.c_str());
    return kSkipped;
  }
  try {
    const Rates rates(std::move(backend));
    measure_products(rates);
    measure_kernels(rates);
    measure_copies(rates);
    measure_launches(rates);
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
  std::printf("done\n");
  return 0;
}
