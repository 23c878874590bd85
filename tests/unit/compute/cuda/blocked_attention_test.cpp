// Attention in blocks of queries: the CUDA kernels' source on the CPU, with threads in three orders, against float64.
#include "tests/support/torch_doctest.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "lib/compute/ops/attention/query_blocks.hpp"
#include "tests/support/attention_truth.hpp"
#include "tests/support/emulated_ops.hpp"
#include "tests/support/packed_rows.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using namespace fsdp::test;
using emulated::Order;

namespace {

/// Counts multiply-adds, and the largest number of scores held at once.
class CountedBlocks final : public DeviceOps {
 public:
  CountedBlocks() : DeviceOps(at::kCPU, std::make_shared<EmulatedKernels>(Order::forward)) {}
  bool is_on_host(const at::Tensor&) const override { return false; }
  mutable std::int64_t count = 0, widest = 0;

 protected:
  void batched_product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) const override {
    count += out.numel() * a.size(-1);
    widest = std::max(widest, out.numel());
    DeviceOps::batched_product(out, a, b, add);
  }
};

struct BlockInputs {
  at::Tensor qkv, grad_out;
};

BlockInputs block_inputs(const AttentionShape& s) {
  at::set_num_threads(1);  // products are so small that threads would only wait
  const auto tokens = s.rows * s.query_length;
  // Scores are as large as in trained models, so that caps take effect.
  return {at::randn({tokens, s.packed_width()}).mul_(1.5), at::randn({tokens, s.heads * s.head_size})};
}

AttentionShape banded(AttentionShape s, std::int64_t window, double softcap) {
  s.window = window;
  s.softcap = softcap;
  return s;
}

/// float32: sums of at most 600 numbers in another order, and rounded exponents up to 20, whose error the exponential
/// magnifies. 16 bits: probabilities and their gradients are rounded once (half a unit of 2^-8 or 2^-11), as q, k, v.
double block_bound(at::ScalarType type) { return type == at::kFloat ? 1e-5 : type == at::kBFloat16 ? 2e-2 : 3e-3; }

double far_apart(const AttentionResult& a, const AttentionResult& b) {
  return std::max(relative_error(a.out_ND, b.out_ND), relative_error(a.grad_qkv, b.grad_qkv));
}

AttentionResult emulated_attention(Order order, const BlockInputs& in, const AttentionShape& s) {
  return run_attention(EmulatedOps(order), in.qkv, in.grad_out, s);
}

void check_blocks(const AttentionShape& s) {
  const auto in = block_inputs(s);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    INFO(std::string(c10::toString(type)), " L ", s.query_length, " heads ", s.heads, " of ", s.key_heads(), " size ",
         s.head_size, " window ", s.window, " cap ", s.softcap);
    const BlockInputs narrow{in.qkv.to(type), in.grad_out.to(type)};
    const auto first = emulated_attention(Order::forward, narrow, s);
    for (const auto order : {Order::backward, Order::shuffled}) {
      if (type != at::kFloat && s.query_length > 200) continue;  // 16-bit types differ only in loads and stores
      const auto again = emulated_attention(order, narrow, s);
      CHECK(same_bits(again.out_ND, first.out_ND));
      CHECK(same_bits(again.grad_qkv, first.grad_qkv));
    }
    CHECK(far_apart(first, attention_truth(narrow.qkv, narrow.grad_out, s)) < block_bound(type));
    CHECK(same_bits(EmulatedOps(Order::forward).attention(narrow.qkv, s, nullptr), first.out_ND));
  }
}

}  // namespace

TEST_SUITE("cuda/attention in blocks") {
  TEST_CASE("windows, caps, grouped heads and odd sizes, in three orders of threads") {
    at::manual_seed(11);
    // One query; a block plus one query; more keys than a warp handles at once; a head width that no vector divides.
    check_blocks(banded({1, 1, 2, 8}, 0, 3));
    check_blocks(banded({2, 37, 4, 10, 2}, 5, 0));
    check_blocks(banded({1, 257, 2, 16, 1}, 0, 4));
    check_blocks(banded({2, 70, 6, 8, 3}, 34, 2.5));
    check_blocks(banded({1, 301, 1, 8}, 250, 5));
    check_blocks(banded({1, 20, 1, 7}, 1, 0));
    check_blocks({3, 40, 4, 24, 2});
    auto scaled = banded({2, 33, 2, 16}, 100, 3);
    scaled.scale = 0.3;
    check_blocks(scaled);
  }

  TEST_CASE("a window that is off by one, and a cap without its derivative, are detected") {
    at::manual_seed(12);
    const auto s = banded({1, 300, 2, 16, 1}, 20, 2);
    const auto in = block_inputs(s);
    const auto got = emulated_attention(Order::forward, in, s);
    CHECK(far_apart(got, attention_truth(in.qkv, in.grad_out, s)) < block_bound(at::kFloat));
    for (const std::int64_t window : {19, 21}) {
      const auto wrong = attention_truth(in.qkv, in.grad_out, banded(s, window, 2));
      CHECK(far_apart(got, wrong) > 1000 * block_bound(at::kFloat));
    }
    for (const double cap : {0.0, 2.02})
      CHECK(far_apart(got, attention_truth(in.qkv, in.grad_out, banded(s, 20, cap))) > 100 * block_bound(at::kFloat));
  }

  TEST_CASE("packed documents: each equals the separate document, with zeros between them") {
    at::manual_seed(13);
    const auto packing = packed({{7, 1, 19, 3}, {270, 12}, {}}, 290);
    auto s = banded({3, 290, 4, 8, 2}, 8, 3);
    s.packing = packing.get();
    const auto in = block_inputs(s);
    const auto got = emulated_attention(Order::shuffled, in, s);
    auto covered = at::zeros({s.rows * s.query_length}, at::kBool);
    for (const auto& [first, length, shared] : packing->documents) {
      covered.narrow(0, first, length).fill_(true);
      const auto want = attention_truth(in.qkv.narrow(0, first, length), in.grad_out.narrow(0, first, length),
                                        banded({1, length, 4, 8, 2}, 8, 3));
      CHECK(relative_error(got.out_ND.narrow(0, first, length), want.out_ND) < block_bound(at::kFloat));
      CHECK(relative_error(got.grad_qkv.narrow(0, first, length), want.grad_qkv) < block_bound(at::kFloat));
    }
    for (const auto& x : {got.out_ND, got.grad_qkv})
      CHECK(x.masked_fill(covered.unsqueeze(1), 0).abs().max().item<float>() == 0);
  }

  TEST_CASE("a NaN in a key reaches the queries that attend to it, and no others") {
    const auto s = banded({1, 20, 1, 8}, 4, 0);
    auto in = block_inputs(s);
    in.qkv[10].narrow(0, 8, 8).fill_(std::numeric_limits<float>::quiet_NaN());
    const auto out = emulated_attention(Order::forward, in, s).out_ND.isnan().any(1);
    for (std::int64_t t = 0; t < 20; ++t) CHECK(out[t].item<bool>() == (t >= 10 && t < 14));
  }

  TEST_CASE("keys outside of a window are not read, and scores of only one block are held") {
    for (const std::int64_t length : {1, 255, 256, 257, 1000, 5000}) {
      for (const std::int64_t window : {0, 1, 64, 256, 1000}) {
        const auto s = banded({1, length, 1, 8}, window, 0);
        std::int64_t next = 0;
        for (std::int64_t i = 0; i < num_query_blocks(s); ++i) {
          const auto b = query_block(s, i);
          CHECK(b.first_query == next);
          next += b.queries;
          CHECK(b.queries > 0);
          CHECK(b.first_key + b.keys == next);  // includes the last query itself
          CHECK(b.first_key == (window > 0 ? std::max<std::int64_t>(0, b.first_query + 1 - window) : 0));
        }
        CHECK(next == length);
      }
    }
    // Two products of 16 columns in the forward and five in the backward pass, each over window plus block.
    const CountedBlocks ops;
    const auto of = [&](std::int64_t length) {
      ops.count = ops.widest = 0;
      const auto s = banded({1, length, 1, 16}, 64, 0);
      const auto in = block_inputs(s);
      run_attention(ops, in.qkv, in.grad_out, s);
      return static_cast<double>(ops.count) / static_cast<double>(length);
    };
    const auto of_short = of(512);
    CHECK(of(1024) < 1.15 * of_short);
    CHECK(of(1024) <= 7 * 16 * (kBlockQueries + 63));
    CHECK(ops.widest <= kBlockQueries * (kBlockQueries + 63));
  }

  TEST_CASE("sequences are processed together until they fill a GPU, with the same results as separately") {
    CHECK(sequences_at_once(banded({8, 512, 16, 64}, 0, 50)) == 8);
    CHECK(sequences_at_once(banded({8, 8192, 16, 256, 8}, 0, 50)) == 2);
    CHECK(sequences_at_once(banded({8, 131072, 32, 128, 8}, 0, 50)) == 1);
    CHECK(sequences_at_once(banded({64, 131072, 32, 128, 8}, 1024, 50)) == 6);
    at::manual_seed(14);
    const auto s = banded({3, 50, 2, 8, 1}, 9, 2), alone = banded({1, 50, 2, 8, 1}, 9, 2);
    const auto in = block_inputs(s);
    const auto all = emulated_attention(Order::forward, in, s);
    for (std::int64_t b = 0; b < 3; ++b) {
      const BlockInputs one{in.qkv.narrow(0, 50 * b, 50), in.grad_out.narrow(0, 50 * b, 50)};
      const auto got = emulated_attention(Order::forward, one, alone);
      CHECK(relative_error(got.out_ND, all.out_ND.narrow(0, 50 * b, 50)) < 1e-6);
      CHECK(relative_error(got.grad_qkv, all.grad_qkv.narrow(0, 50 * b, 50)) < 1e-6);
    }
  }
}
