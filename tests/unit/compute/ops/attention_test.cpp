#include "tests/support/torch_doctest.hpp"

#include <ATen/Parallel.h>

#include "lib/base/types/error.hpp"
#include "lib/compute/ops/attention/gpu_attention.hpp"
#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/device_ops.hpp"
#include "tests/support/attention_truth.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/packed_rows.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

AttentionResult ours(const at::Tensor& qkv, const at::Tensor& grad_out, const AttentionShape& shape) {
  return run_attention(host_ops(), qkv, grad_out, shape);
}
at::Tensor forward(const at::Tensor& qkv, const AttentionShape& shape) {
  return host_ops().attention(qkv, shape, nullptr);
}

/// Computes attention with ATen and autograd in float64.
AttentionResult truth(const at::Tensor& qkv, const at::Tensor& grad_out, const AttentionShape& s) {
  const auto x = qkv.to(at::kDouble).requires_grad_(true);
  const auto split = x.view({s.rows, s.query_length, 3, s.heads, s.head_size}).permute({2, 0, 3, 1, 4});
  const auto out = at::scaled_dot_product_attention(split[0], split[1], split[2], {}, 0.0, true)
                       .transpose(1, 2)
                       .reshape({s.rows * s.query_length, s.heads * s.head_size});
  const auto grads = torch::autograd::grad({out}, {x}, {grad_out.to(at::kDouble)});
  return {out.detach(), grads[0]};
}

class CountedProducts final : public CpuOps {
 public:
  mutable std::int64_t count = 0;  ///< number of multiply-adds

 protected:
  void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const override {
    count += out.numel() * a.size(-1);
    CpuOps::product(out, a, b, add);
  }
};

std::pair<at::Tensor, at::Tensor> random_inputs(const AttentionShape& s, at::ScalarType type) {
  const auto n = s.rows * s.query_length, d = s.heads * s.head_size;
  return {at::randn({n, 3 * d}).to(type), at::randn({n, d}).to(type)};
}

}  // namespace

TEST_SUITE("ops/attention") {
  TEST_CASE("attention: short rows and flash against float64 autograd") {
    at::manual_seed(1);
    Worst worst32;
    for (const int threads : {1, 3}) {
      at::set_num_threads(threads);
      // The last three straddle kShortRow: batched products up to 512, the flash kernel beyond.
      for (const AttentionShape& s :
           {AttentionShape{1, 1, 1, 4}, AttentionShape{3, 5, 2, 7}, AttentionShape{2, 33, 3, 16},
            AttentionShape{1, 255, 2, 8}, AttentionShape{2, kShortRow, 1, 8}, AttentionShape{2, kShortRow + 1, 1, 8},
            AttentionShape{1, 700, 2, 16}}) {
        for (const auto type : {at::kFloat, at::kBFloat16}) {
          INFO(std::string(c10::toString(type)), " B ", s.rows, " L ", s.query_length, " H ", s.heads, " threads ",
               threads);
          const auto [qkv, grad_out] = random_inputs(s, type);
          const auto got = ours(qkv, grad_out, s);
          const auto want = truth(qkv, grad_out, s);
          // float32: softmax over at most 700 terms; bf16: probabilities and scores are stored in 8 bits.
          const double bound = type == at::kFloat ? 3e-6 : 2e-2;
          CHECK(relative_error(got.out_ND, want.out_ND) < bound);
          CHECK(relative_error(got.grad_qkv, want.grad_qkv) < bound);
          if (type == at::kFloat) {
            worst32(relative_error(got.out_ND, want.out_ND));
            worst32(relative_error(got.grad_qkv, want.grad_qkv));
          }
        }
      }
    }
    at::set_num_threads(1);
    MESSAGE("largest relative error in float32: ", worst32.value);
  }

  TEST_CASE("windows, caps and scales of the scores, in query blocks, against float64 autograd") {
    at::manual_seed(3);
    const DeviceOps plain(at::kCPU);
    Worst worst;
    for (const std::int64_t length : {1, 40, 128, 300}) {
      for (const std::int64_t window : {0, 1, 7, 128, 200}) {
        for (const double cap : {0.0, 3.0}) {
          AttentionShape s{2, length, 4, 16, 2};
          s.window = window;
          s.softcap = cap;
          s.scale = cap > 0 ? 0.3 : 0;
          const auto qkv = at::randn({s.rows * s.query_length, s.packed_width()});
          const auto grad_out = at::randn({s.rows * s.query_length, s.heads * s.head_size});
          INFO("L ", length, ", window ", window, ", cap ", cap);
          const auto want = attention_truth(qkv, grad_out, s);
          for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&plain)}) {
            const auto got = run_attention(*ops, qkv, grad_out, s);
            CHECK(relative_error(got.out_ND, want.out_ND) < 5e-6);
            CHECK(relative_error(got.grad_qkv, want.grad_qkv) < 5e-6);
            worst(relative_error(got.grad_qkv, want.grad_qkv));
            CHECK(same_bits(ops->attention(qkv, s, nullptr), got.out_ND));
          }
          const auto narrow = run_attention(host_ops(), qkv.to(at::kBFloat16), grad_out.to(at::kBFloat16), s);
          CHECK(relative_error(narrow.out_ND, want.out_ND) < 3e-2);  // scores and probabilities in 8 bits
          CHECK(relative_error(narrow.grad_qkv, want.grad_qkv) < 4e-2);
        }
      }
    }
    MESSAGE("largest relative error in float32: ", worst.value);
  }

  TEST_CASE("with a window the number of multiply-adds per token does not depend on the row's length") {
    const CountedProducts ops;
    // Returns multiply-adds per token of the forward and the backward pass.
    const auto of = [&](std::int64_t length) {
      AttentionShape s{1, length, 2, 16};
      s.window = 64;
      const auto qkv = at::randn({length, s.packed_width()});
      std::unique_ptr<AttentionState> state;
      ops.count = 0;
      const auto out = ops.attention(qkv, s, &state);
      const auto forward = static_cast<double>(ops.count) / static_cast<double>(length);
      ops.count = 0;
      ops.attention_backward(out, qkv, out, s, std::move(state));
      return std::pair{forward, static_cast<double>(ops.count) / static_cast<double>(length)};
    };
    const auto [forward, backward] = of(1024);
    const auto [long_forward, long_backward] = of(4096);
    CHECK(long_forward < 1.05 * forward);
    CHECK(long_backward < 1.05 * backward);
    // Products of 16 columns over window plus block, for each of two heads: two in the forward pass; in the backward
    // pass the scores again, and the gradients of probabilities, queries, keys and values.
    constexpr double kProduct = 2 * 16 * (64 + 128);
    CHECK(long_forward < 2 * kProduct);
    CHECK(long_backward < 5 * kProduct);
    MESSAGE("multiply-adds for a token: ", long_forward, " and ", long_backward, " of ", kProduct, " a product");
  }

  TEST_CASE("attention by its formula, as on GPUs without a fused kernel, with grouped heads and dropout") {
    at::manual_seed(2);
    for (const std::int64_t kv_heads : {4, 2, 1}) {
      for (const double dropout : {0.0, 0.25}) {
        AttentionShape s{3, 40, 4, 8, kv_heads, dropout, {}};
        if (dropout > 0) s.dropout_place = {at::randint(1 << 30, {s.rows}, at::kLong), 77};
        const auto qkv = at::randn({s.rows * s.query_length, s.packed_width()});
        const auto grad_out = at::randn({s.rows * s.query_length, s.heads * s.head_size});
        INFO(kv_heads, " heads of keys, dropout ", dropout);
        const auto want = ours(qkv, grad_out, s);
        const DeviceOps plain(at::kCPU);
        const auto got = run_attention(plain, qkv, grad_out, s);
        CHECK(relative_error(got.out_ND, want.out_ND) < 1e-5);  // float32, other orders of summation
        CHECK(relative_error(got.grad_qkv, want.grad_qkv) < 1e-5);
        CHECK(relative_error(plain.attention(qkv, s, nullptr), want.out_ND) < 1e-5);
      }
    }
  }

  TEST_CASE("packed documents: each equals the separate document bit for bit, with zeros between them") {
    at::manual_seed(7);
    const DeviceOps plain(at::kCPU);
    // Documents of one token, short and long ones, with padding after, between and before them; the last row is empty.
    const auto packing = packed({{7, 1, 19, 3}, {600, 20}, {}}, 640);
    for (const std::int64_t window : {0, 8}) {
      for (const double dropout : {0.0, 0.25}) {
        if (window > 0 && dropout > 0) continue;
        AttentionShape s{3, 640, 4, 8, 2, dropout, {}};
        s.window = window;
        s.packing = packing.get();
        if (dropout > 0) s.dropout_place = {at::randint(1 << 30, {s.rows}, at::kLong), 77};
        const auto qkv = at::randn({s.rows * s.query_length, s.packed_width()});
        const auto grad_out = at::randn({s.rows * s.query_length, s.heads * s.head_size});
        for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&plain)}) {
          INFO("window ", window, ", dropout ", dropout, ops == &plain ? ", by its formula" : "");
          const auto got = run_attention(*ops, qkv, grad_out, s);
          CHECK(same_bits(ops->attention(qkv, s, nullptr), got.out_ND));
          auto covered = at::zeros({s.rows * s.query_length}, at::kBool);
          for (const auto& [first, length, shared] : packing->documents) {
            covered.narrow(0, first, length).fill_(true);
            if (dropout > 0) continue;  // dropout masks depend on the row
            AttentionShape alone{1, length, 4, 8, 2};
            alone.window = window;
            const auto want =
                run_attention(*ops, qkv.narrow(0, first, length), grad_out.narrow(0, first, length), alone);
            CHECK(same_bits(got.out_ND.narrow(0, first, length), want.out_ND));
            CHECK(same_bits(got.grad_qkv.narrow(0, first, length), want.grad_qkv));
          }
          for (const auto& x : {got.out_ND, got.grad_qkv})
            CHECK(x.masked_fill(covered.unsqueeze(1), 0).abs().max().item<float>() == 0);
        }
      }
    }
  }

  TEST_CASE("packed documents: with dropout the backward is the derivative of the forward") {
    at::manual_seed(8);
    for (const auto& packing : {packed_sharing({{5, 4}, {6}}, 10), packed_sharing({{5, {3, 4}}, {6, {2, 1}}}, 10)}) {
      AttentionShape s{2, 10, 2, 4, 0, 0.3, {at::randint(0, 1 << 30, {2}, at::kLong), 5}};
      s.packing = packing.get();
      const auto [qkv, grad_out] = random_inputs(s, at::kFloat);
      const auto direction = at::randn_like(qkv);
      const auto value = [&, g = grad_out](const at::Tensor& x) {
        return (forward(x, s).to(at::kDouble) * g).sum().item<double>();
      };
      constexpr double kStep = 1e-2;
      const auto slope = (value(qkv + kStep * direction) - value(qkv - kStep * direction)) / (2 * kStep);
      const auto got = (ours(qkv, grad_out, s).grad_qkv.to(at::kDouble) * direction).sum().item<double>();
      CHECK(got == doctest::Approx(slope).epsilon(2e-3));  // the step's cubic term
    }
  }

  TEST_CASE("packed documents cost as much as separate ones: masked blocks are not multiplied") {
    const CountedProducts ops;
    const auto of = [&](const std::vector<std::int64_t>& documents, std::int64_t length, std::int64_t window) {
      AttentionShape s{1, length, 2, 16};
      s.window = window;
      const auto packing = packed({documents}, length);
      s.packing = packing.get();
      ops.count = 0;
      const auto qkv = at::randn({length, s.packed_width()});
      std::unique_ptr<AttentionState> state;
      const auto out = ops.attention(qkv, s, &state);
      ops.attention_backward(out, qkv, out, s, std::move(state));
      return ops.count;
    };
    for (const std::int64_t window : {0, 40}) {
      const auto apart = of({100}, 100, window) + of({250}, 250, window) + of({62}, 62, window);
      CHECK(of({100, 250, 62}, 512, window) == apart);
    }
    // Eight documents per row need an eighth of the full row's products.
    CHECK(8 * of(std::vector<std::int64_t>(8, 64), 512, 0) == of({512}, 512, 0));
  }

  TEST_CASE("the GPU's kernel is chosen by shape") {
    const AttentionShape packed_rows{4, 512, 32, 128}, ragged{4, 200, 32, 128}, odd{4, 512, 8, 20},
        shared{4, 512, 32, 128, 8};
    AttentionShape dropped = packed_rows;
    dropped.dropout = 0.1;
    using enum GpuAttention;
    const auto on = [](int capability, const AttentionShape& s, at::ScalarType type, bool has_cudnn = true) {
      return choose_gpu_attention({capability, has_cudnn}, s, type);
    };
    CHECK(on(90, packed_rows, at::kBFloat16) == cudnn);
    CHECK(on(90, packed_rows, at::kBFloat16, false) == flash);
    CHECK(on(90, ragged, at::kBFloat16) == flash);  // cuDNN would build a plan for each length
    CHECK(on(80, packed_rows, at::kHalf) == flash);
    CHECK(on(80, packed_rows, at::kFloat) == memory_efficient);
    CHECK(on(80, shared, at::kFloat) == blocks);
    CHECK(on(80, shared, at::kBFloat16) == flash);
    CHECK(on(75, packed_rows, at::kBFloat16) == blocks);
    CHECK(on(75, packed_rows, at::kHalf) == memory_efficient);
    CHECK(on(80, odd, at::kBFloat16) == blocks);
    CHECK(on(90, dropped, at::kBFloat16) == formula);
    auto slides = packed_rows, capped = packed_rows, wide_heads = packed_rows;
    slides.window = 200;
    capped.softcap = 50;
    wide_heads.head_size = 256;
    CHECK(on(90, slides, at::kBFloat16) == flash);  // PyTorch does not pass windows to cuDNN
    CHECK(on(80, slides, at::kHalf) == flash);
    CHECK(on(80, slides, at::kFloat) == blocks);
    CHECK(on(75, slides, at::kHalf) == blocks);  // the memory-efficient kernel has no windows either
    slides.window = 512;
    CHECK(on(90, slides, at::kBFloat16) == cudnn);  // the window covers the whole row
    CHECK(on(80, slides, at::kFloat) == memory_efficient);
    CHECK(on(90, capped, at::kBFloat16) == blocks);
    CHECK(on(80, capped, at::kFloat) == blocks);
    for (const int capability : {80, 86, 90, 120}) CHECK(on(capability, wide_heads, at::kBFloat16) == flash);
    wide_heads.window = 100;
    CHECK(on(86, wide_heads, at::kBFloat16) == flash);
    wide_heads.head_size = 208;
    CHECK(on(86, wide_heads, at::kBFloat16) == blocks);  // flash has no backward for this width
    capped.dropout = 0.1;
    CHECK(on(90, capped, at::kBFloat16) == formula);
    // A kernel that is asked for serves the shapes that it supports.
    const auto asked = [](GpuAttention kernel, int capability, const AttentionShape& s, at::ScalarType type) {
      return choose_gpu_attention({.compute_capability = capability, .has_cudnn = true, .asked = kernel}, s, type);
    };
    CHECK(asked(flash, 90, packed_rows, at::kBFloat16) == flash);
    CHECK(asked(flash, 90, packed_rows, at::kFloat) == memory_efficient);
    CHECK(asked(cudnn, 90, ragged, at::kBFloat16) == cudnn);
    CHECK(asked(cudnn, 80, shared, at::kHalf) == cudnn);
    CHECK(asked(cudnn, 75, packed_rows, at::kHalf) == memory_efficient);
    CHECK(asked(cudnn, 90, slides, at::kFloat) == memory_efficient);
    CHECK(asked(cudnn, 90, wide_heads, at::kBFloat16) == flash);
    CHECK(asked(memory_efficient, 90, packed_rows, at::kBFloat16) == memory_efficient);
    CHECK(asked(memory_efficient, 90, shared, at::kBFloat16) == cudnn);
    CHECK(asked(memory_efficient, 75, packed_rows, at::kBFloat16) == blocks);
    CHECK(asked(blocks, 90, packed_rows, at::kBFloat16) == blocks);
    CHECK(asked(blocks, 90, dropped, at::kBFloat16) == formula);
    CHECK((gpu_block_type({75, true}, at::kBFloat16) == at::kFloat));
    CHECK((gpu_block_type({75, true}, at::kHalf) == at::kHalf));
    CHECK((gpu_block_type({80, true}, at::kBFloat16) == at::kBFloat16));
    // Packed documents use flash attention if it supports the longest document.
    const auto packing = packed({{100, 300}}, 512);
    const auto by_flash = [&](int capability, AttentionShape s, at::ScalarType type) {
      s.packing = packing.get();
      return packs_by_flash({capability, true}, s, type);
    };
    CHECK(by_flash(90, packed_rows, at::kBFloat16));
    CHECK(by_flash(80, shared, at::kHalf));
    CHECK_FALSE(by_flash(80, packed_rows, at::kFloat));
    CHECK_FALSE(by_flash(75, packed_rows, at::kHalf));
    CHECK_FALSE(by_flash(80, odd, at::kBFloat16));
    CHECK_FALSE(by_flash(90, dropped, at::kBFloat16));
    auto windowed = packed_rows;
    for (const std::int64_t window : {200, 300}) {  // the documents' lengths count, not the rows'
      windowed.window = window;
      CHECK(by_flash(90, windowed, at::kBFloat16));
      CHECK_FALSE(by_flash(80, windowed, at::kFloat));
    }
    windowed.softcap = 30;
    CHECK_FALSE(by_flash(90, windowed, at::kBFloat16));
    auto together = packed_rows;
    together.packing = packing.get();
    CHECK_FALSE(packs_by_flash({.compute_capability = 90, .asked = blocks}, together, at::kBFloat16));
    for (const auto& [word, kernel] :
         {std::pair("cudnn", cudnn), {"flash", flash}, {"efficient", memory_efficient}, {"blocks", blocks}}) {
      const test::Environment environment(test::Environment::Variables{{"FSDP_CUDA_ATTENTION", word}});
      CHECK((asked_gpu_attention() == kernel));
    }
    CHECK_FALSE(asked_gpu_attention().has_value());
    const test::Environment environment(test::Environment::Variables{{"FSDP_CUDA_ATTENTION", "fast"}});
    CHECK_THROWS_WITH_AS(asked_gpu_attention(), doctest::Contains("cudnn, flash, efficient or blocks"), UsageError);
  }

  TEST_CASE("attention: one and three threads give the same bits for short rows") {
    const AttentionShape s{4, 64, 2, 8};
    const auto [qkv, grad_out] = random_inputs(s, at::kFloat);
    at::set_num_threads(1);
    const auto one = ours(qkv, grad_out, s);
    at::set_num_threads(3);
    const auto three = ours(qkv, grad_out, s);
    at::set_num_threads(1);
    CHECK(relative_error(three.out_ND, one.out_ND) < 1e-6);
    CHECK(relative_error(three.grad_qkv, one.grad_qkv) < 1e-6);
  }

  TEST_CASE("attention: later tokens do not change earlier ones") {
    for (const std::int64_t length : {std::int64_t{40}, kShortRow + 40}) {
      const AttentionShape s{1, length, 2, 8};
      const auto [qkv, grad_out] = random_inputs(s, at::kFloat);
      const auto before = forward(qkv, s);
      qkv.narrow(0, 20, length - 20).normal_();
      const auto after = forward(qkv, s);
      CHECK(same_bits(before.narrow(0, 0, 20), after.narrow(0, 0, 20)));
      CHECK_FALSE(same_bits(before.narrow(0, 20, 1), after.narrow(0, 20, 1)));
    }
  }

  TEST_CASE("attention: no rows, no work") {
    const AttentionShape none{0, 8, 2, 4};
    const auto result = ours(at::empty({0, 24}), at::empty({0, 8}), none);
    CHECK(result.out_ND.sizes() == at::IntArrayRef({0, 8}));
    CHECK(result.grad_qkv.sizes() == at::IntArrayRef({0, 24}));
  }

  TEST_CASE("attention: with dropout the backward is the derivative of the forward") {
    at::manual_seed(3);
    AttentionShape s{2, 9, 2, 4, 0, 0.3, {at::randint(0, std::numeric_limits<std::int64_t>::max(), {2}, at::kLong), 5}};
    const auto [qkv, grad_out] = random_inputs(s, at::kFloat);
    const auto direction = at::randn_like(qkv);
    const auto value = [&, g = grad_out](const at::Tensor& x) {
      return (forward(x, s).to(at::kDouble) * g).sum().item<double>();
    };
    constexpr double kStep = 1e-2;
    const auto slope = (value(qkv + kStep * direction) - value(qkv - kStep * direction)) / (2 * kStep);
    const auto got = (ours(qkv, grad_out, s).grad_qkv.to(at::kDouble) * direction).sum().item<double>();
    CHECK(got == doctest::Approx(slope).epsilon(2e-3));  // the step's cubic term
    // A sequence keeps its mask in another batch.
    auto alone = s;
    alone.rows = 1;
    alone.dropout_place.sample_keys_B = s.dropout_place.sample_keys_B.narrow(0, 1, 1).contiguous();
    const auto both = forward(qkv, s);
    const auto one = forward(qkv.narrow(0, 9, 9).contiguous(), alone);
    CHECK(relative_error(one, both.narrow(0, 9, 9)) < 1e-6);
    alone.dropout = 0;
    CHECK(relative_error(forward(qkv.narrow(0, 9, 9).contiguous(), alone), one) > 0.1);
  }
}
