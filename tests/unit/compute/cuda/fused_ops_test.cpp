// The kernels' source on the CPU, with threads in three orders: the same bits in all orders, and close to the plain
// operators in float32.
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <sys/mman.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "tests/support/emulated_ops.hpp"
#include "tests/support/loss_truth.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using namespace fsdp::test;
using emulated::Order;

namespace {

using Tensors = std::vector<at::Tensor>;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

/// Sums of at most 700 float32 numbers: 1e-5. In 16 bits each result is rounded once (half a unit of 2^-8 or 2^-11); a
/// result computed from rounded results, such as the norm of a sum, is rounded twice.
double bound(at::ScalarType type) { return type == at::kFloat ? 1e-5 : type == at::kBFloat16 ? 6e-3 : 8e-4; }

struct Size {
  std::int64_t rows, dim;
};
/// Rows for one thread and for many, widths that are not a multiple of the vector, two vectors per thread, rows for
/// more than one block.
constexpr Size kWideRows[] = {{2, 8193}, {19, 8200}};       ///< wider than registers hold; more rows than blocks
constexpr Size kVocabularies[] = {{2, 32016}, {2, 50257}};  ///< of CodeLlama and GPT-2
constexpr Size kSizes[] = {{1, 7},    {3, 8},    {33, 17}, {5, 257},  {9, 256},
                           {3, 4168}, {130, 24}, {2, 768}, {2, 4096}, {2, 11008}};  ///< the last three: GPT-2 and Llama

at::Tensor randn(at::IntArrayRef sizes, at::ScalarType type) { return at::randn(sizes).to(type); }
at::Tensor wide(const at::Tensor& x, at::ScalarType type = at::kDouble) {
  return x.defined() && x.is_floating_point() ? x.to(type, false, true) : x;
}

/// Compares body(ops, convert) on the kernels with the plain operators, for which convert casts inputs to float64.
void check(at::ScalarType type,
           const std::function<Tensors(const Ops&, const std::function<at::Tensor(at::Tensor)>&)>& body,
           at::ScalarType reference = at::kDouble) {
  const auto as_is = [](at::Tensor x) { return x.defined() ? x.clone() : x; };
  const auto widened = [reference](at::Tensor x) { return wide(x, reference); };
  const auto want = body(DeviceOps(at::kCPU), widened);
  const auto first = body(EmulatedOps(Order::forward), as_is);
  for (const auto order : {Order::backward, Order::shuffled}) {
    const auto again = body(EmulatedOps(order), as_is);
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(same_bits(again[i], first[i]));
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    INFO("result ", i);
    CHECK(relative_error(first[i], want[i]) < bound(type));
  }
}

template <typename Body>
void for_all(const Body& body, std::span<const Size> sizes = kSizes) {
  at::manual_seed(1);
  for (const auto type : kTypes) {
    for (const auto size : sizes) {
      INFO(std::string(c10::toString(type)), " rows ", size.rows, " dim ", size.dim);
      body(type, size);
    }
  }
}

/// Returns positions of consecutive documents of 1, 2, 3, ... and at most 13 tokens.
at::Tensor packed_positions(std::int64_t tokens) {
  std::vector<std::int32_t> positions;
  for (std::int32_t length = 1; static_cast<std::int64_t>(positions.size()) < tokens; length = length % 13 + 1) {
    for (std::int32_t t = 0; t < length; ++t) positions.push_back(t);
  }
  positions.resize(static_cast<std::size_t>(tokens));
  return at::tensor(positions, at::kInt);
}

/// Returns an update without parameters.
AdamWUpdate adamw_update() {
  AdamWUpdate update;
  update.lr = 1e-2;
  update.weight_decay = 0.1;
  update.grad_divisor = 3;
  update.beta1 = 0.9;
  update.beta2 = 0.99;
  update.eps = 1e-8;
  return update;
}

}  // namespace

TEST_SUITE("cuda/fused operations") {
  TEST_CASE("norms of residual sums") {
    const auto body = [](at::ScalarType type, Size s) {
      const auto x = randn({s.rows, s.dim}, type).add_(0.5), y = randn({s.rows, s.dim}, type);
      const auto bias = randn({s.dim}, type), gamma = randn({s.dim}, type), beta = randn({s.dim}, type);
      for (int form = 0; form < 3; ++form) {
        CAPTURE(form);
        check(type, [&](const Ops& ops, const auto& as) {
          const auto more = form > 0 ? as(y) : at::Tensor(), shift = form > 1 ? as(bias) : at::Tensor();
          const auto layer = ops.add_layer_norm(as(x), more, shift, as(gamma), as(beta), 1e-5);
          const auto rms = ops.add_rms_norm(as(x), more, shift, as(gamma), {1e-5, form > 1 ? 1.0 : 0.0});
          return Tensors{layer.sum_ND, layer.out_ND, layer.mean_N, layer.rstd_N, rms.sum_ND, rms.out_ND, rms.rstd_N};
        });
      }
    };
    for_all(body);
    for_all(body, kWideRows);
  }

  TEST_CASE("backward of norms: input, scale, shift, the preceding bias, and the recomputed output") {
    const auto body = [](at::ScalarType type, Size s) {
      const auto x = randn({s.rows, s.dim}, type), grad = randn({s.rows, s.dim}, type);
      const auto residual = randn({s.rows, s.dim}, type), gamma = randn({s.dim}, type), beta = randn({s.dim}, type);
      for (const bool full : {false, true}) {
        CAPTURE(full);
        check(type, [&](const Ops& ops, const auto& as) {
          std::array<GradSlot, 5> slots;
          for (auto& slot : slots) slot = {at::ones({s.dim}), full};
          const auto in = as(x), g = as(gamma), dy = as(grad), past = full ? as(residual) : at::Tensor();
          at::Tensor layer_again, rms_again;
          const NormAgain layer_more{as(beta), layer_again}, rms_more{{}, rms_again};
          const auto layer = ops.add_layer_norm(in, {}, {}, g, as(beta), 1e-5);
          const auto rms = ops.add_rms_norm(in, {}, {}, g, {1e-5, full ? 1.0 : 0.0});
          Tensors all{ops.layer_norm_backward({dy, past, in, layer, g},
                                              {&slots[0], &slots[1], full ? &slots[2] : nullptr}, &layer_more),
                      ops.rms_norm_backward({dy, past, in, rms, g}, {&slots[3], nullptr, full ? &slots[4] : nullptr},
                                            full ? &rms_more : nullptr)};
          for (const auto& slot : slots) all.push_back(slot.grad);
          all.push_back(layer_again);
          if (full) all.push_back(rms_again);
          return all;
        });
      }
    };
    for_all(body);
    for_all(body, kWideRows);
  }

  TEST_CASE("parameter gradients are set in or added to slots of any dtype") {
    at::manual_seed(2);
    for (const auto type : kTypes) {
      for (const bool written : {false, true}) {
        const auto x = randn({100, 40}, at::kFloat);
        check(type, [&](const Ops& ops, const auto& as) {
          GradSlot slot{as(at::full({40}, 0.25, type)), written};
          ops.bias_grad(&slot, x);
          CHECK(slot.written);
          ops.bias_grad(nullptr, x);
          return Tensors{slot.grad};
        });
      }
    }
  }

  TEST_CASE("activations and biases") {
    for_all([](at::ScalarType type, Size s) {
      const auto x = randn({s.rows, s.dim}, type), y = randn({s.rows, s.dim}, type), bias = randn({s.dim}, type);
      const auto grad = randn({s.rows, s.dim}, type);
      check(type, [&](const Ops& ops, const auto& as) {
        GradSlot bias_slot{at::ones({s.dim}), true}, sum_slot{at::empty({s.dim})};
        auto pre = as(x), g = as(grad);
        const auto out = ops.bias_gelu(pre, as(bias));
        at::Tensor again;
        auto kept = as(y);
        ops.bias_gelu_backward(g, kept, &bias_slot, &again);
        auto gate = as(x), up = as(y), gated = as(grad);
        const auto product = ops.gated(GateActivation::silu, gate, up);
        ops.gated_backward(GateActivation::silu, gated, gate, up);
        auto gelu_gate = as(x), gelu_up = as(y), gelu_gated = as(grad);
        const auto gelu_product = ops.gated(GateActivation::gelu_tanh, gelu_gate, gelu_up);
        ops.gated_backward(GateActivation::gelu_tanh, gelu_gated, gelu_gate, gelu_up);
        auto all = as(x), with_bias = as(x), with_y = as(x);
        ops.add_bias(all, as(y), as(bias));
        ops.add_bias(with_bias, {}, as(bias));
        ops.add_bias(with_y, as(y), {});
        ops.bias_grad(&sum_slot, as(x));
        return Tensors{gelu_product, gelu_gate, gelu_up,        gelu_gated, pre,          out,
                       again,        g,         bias_slot.grad, product,    gated,        gate,
                       up,           all,       with_bias,      with_y,     sum_slot.grad};
      });
    });
  }

  TEST_CASE("GELU's input is only read where the product has added the bias") {
    constexpr std::int64_t kRows = 3, kColumns = 300;
    const auto bytes = static_cast<std::size_t>(kRows * kColumns) * sizeof(float);
    auto* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    {
      auto pre = at::from_blob(memory, {kRows, kColumns});
      pre.copy_(at::randn({kRows, kColumns}));
      const auto want = host_ops().exact_gelu(pre);
      REQUIRE(::mprotect(memory, bytes, PROT_READ) == 0);
      const auto got = EmulatedOps(Order::forward).bias_gelu(pre, {});  // a store would end the program
      CHECK((got - want).abs().max().item<float>() < 1e-3);             // the tanh form differs by 5e-4
    }
    ::munmap(memory, bytes);
  }

  TEST_CASE("rotary positions: heads of any size, rows within wider ones, forward and inverse") {
    at::manual_seed(4);
    for (const auto type : kTypes) {
      for (const std::int64_t head_size : {2, 6, 16, 24, 64, 128, 256}) {
        CAPTURE(head_size);
        const std::vector<float> frequencies(static_cast<std::size_t>(head_size / 2), 0.37f);
        const auto table = host_ops().rope_table(frequencies, 40);
        for (const std::int64_t beside : {0, 3, 32}) {
          const auto x = randn({21, 3 * head_size + beside}, type);
          check(type, [&](const Ops& ops, const auto& as) {
            auto there = as(x), back = as(x), part = as(x);
            ops.rope(there, 3, head_size, table, {7, 5}, false);
            ops.rope(back, 2, head_size, table, {21, 0}, true);
            auto view = part.narrow(1, 0, 3 * head_size);
            ops.rope(view, 3, head_size, table, {7, 5}, false);
            auto packed = as(x);
            ops.rope(packed, 3, head_size, table, {21, 0, packed_positions(21)}, false);
            return Tensors{there, back, part, packed};
          });
        }
      }
    }
  }

  TEST_CASE("embedding and its backward: ids that occur often, once, never; gradients of every dtype") {
    for_all([](at::ScalarType type, Size s) {
      const auto token = randn({11, s.dim}, type), position = randn({20, s.dim}, type);
      const auto ids = at::randint(0, 5, {s.rows}, at::kInt), grad = randn({s.rows, s.dim}, type);
      check(type, [&](const Ops& ops, const auto& as) {
        return Tensors{ops.embed(as(token), as(position), ids, {7, 3}), ops.embed(as(token), {}, ids, {7, 3}),
                       ops.embed(as(token), as(position), ids, {20, 0, packed_positions(s.rows)})};
      });
      for (const auto wire : kTypes) {
        check(wire, [&](const Ops& ops, const auto& as) {
          auto tokens = as(at::full({11, s.dim}, 0.5, wire)), positions = as(at::full({20, s.dim}, 0.5, wire));
          const auto from = wide(grad).to(type);
          ops.embed_backward(&tokens, &positions, from, ids, {20, 0});
          ops.embed_backward(nullptr, &positions, from, ids, {20, 0});
          ops.embed_backward(&tokens, nullptr, from, ids, {20, 0});
          ops.embed_backward(nullptr, &positions, from, ids, {20, 0, packed_positions(s.rows)});
          return Tensors{tokens, positions};
        });
      }
    });
  }

  TEST_CASE("embedding's backward: a frequent id's rows are summed by groups, in one order") {
    const std::int64_t rows = 1300, dim = 24;  // more than two turns of all groups; the last is not full
    const auto ids = at::ones({rows}, at::kInt), grad = randn({rows, dim}, at::kFloat);
    ids[600].fill_(3);  // between the others, in one group alone
    auto want = at::zeros({5, dim}, at::kDouble);
    want.index_add_(0, ids.to(at::kLong), grad.to(at::kDouble));
    at::Tensor before;
    for (const auto order : {Order::forward, Order::shuffled}) {
      auto got = at::zeros({5, dim});
      EmulatedOps(order).embed_backward(&got, nullptr, grad, ids, {rows, 0});
      CHECK((got.to(at::kDouble) - want).abs().max().item<double>() < 1e-4);  // sums of 1300 numbers of about 1
      CHECK((!before.defined() || same_bits(got, before)));
      before = got;
    }
  }

  TEST_CASE("dropout: the host's masks") {
    for_all([](at::ScalarType type, Size s) {
      const auto x = randn({s.rows, s.dim}, type);
      const auto keys = at::randint(0, 1 << 30, {s.rows}, at::kLong).mul_(0x632be59bd9b4e019);
      for (const auto order : {Order::forward, Order::shuffled}) {
        auto want = x.clone(), got = x.clone();
        host_ops().dropout(want, keys, 0.3);
        EmulatedOps(order).dropout(got, keys, 0.3);
        CHECK(same_bits(got, want));
      }
    });
  }

  TEST_CASE("dropout of inputs that no kernel supports: empty tensors, strided views, other dtypes") {
    const EmulatedOps ops(Order::forward);
    const auto keys = at::randint(0, 1 << 30, {6}, at::kLong);
    auto empty = at::empty({0, 8});
    ops.dropout(empty, keys.narrow(0, 0, 0), 0.3);
    auto want = at::ones({6, 8});
    host_ops().dropout(want, keys, 0.3);
    auto whole = at::ones({6, 16});
    auto view = whole.narrow(1, 4, 8);
    ops.dropout(view, keys, 0.3);
    CHECK(same_bits(view.contiguous(), want));
    auto doubles = at::ones({6, 8}, at::kDouble);
    ops.dropout(doubles, keys, 0.3);
    CHECK(relative_error(doubles, want) < 1e-6);
  }

  TEST_CASE("loss and gradient: padding, ignored targets, NaN and infinite logits") {
    const auto compare = [](at::ScalarType type, Size s) {
      const auto logits = randn({s.rows, s.dim + 5}, type).mul_(3);
      auto targets = at::randint(0, s.dim, {s.rows}, at::kInt);
      if (s.rows > 2) targets.narrow(0, 1, 2).fill_(-1);
      for (const double scale : {0.5, 0.0}) {
        check(type, [&](const Ops& ops, const auto& as) {
          auto out = as(logits);
          StepSums sum;
          sum.nats = 1;
          sum.weight = 2;
          for (int round = 0; round < 2; ++round) {  // the second round adds to pending sums
            auto copy = as(logits);
            ops.cross_entropy(sum, round == 0 ? out : copy, targets, s.dim, scale);
          }
          ops.fetch(sum);
          CHECK(sum.weight == 2 + 2 * (s.rows - (s.rows > 2 ? 2 : 0)));
          return Tensors{out, at::full({1}, sum.nats, at::kDouble)};
        });
      }
    };
    for_all(compare);
    for_all(compare, kVocabularies);
    auto logits = at::zeros({2, 5000});
    logits[0].narrow(0, 8, 8).fill_(std::numeric_limits<float>::quiet_NaN());
    logits[1].fill_(-std::numeric_limits<float>::infinity());
    logits[1][3].fill_(0);
    StepSums sum;
    EmulatedOps(Order::forward).cross_entropy(sum, logits, at::full({2}, 3, at::kInt), 5000, 1.0);
    CHECK(std::isnan(sum.pending[0].item<double>()));
    CHECK(std::isnan(logits[0][100].item<float>()));
    CHECK(logits[1].abs().max().item<float>() == 0);  // the target has probability 1
  }

  TEST_CASE("loss and gradient with weights equal torch's losses times weights, and their gradient") {
    const auto compare = [](at::ScalarType type, Size s) {
      const auto logits = randn({s.rows, s.dim + 5}, type).mul_(3);
      const auto targets = weighted_targets(s.rows, s.dim);
      const auto want = loss_truth(logits, targets, s.dim, 0.5);
      for (const auto order : {Order::forward, Order::shuffled}) {
        auto out = logits.clone();
        StepSums sums({"other"});
        EmulatedOps(order).cross_entropy(sums, out, targets, s.dim, 0.5);
        CHECK(sums.pending.numel() == 3);
        EmulatedOps(order).fetch(sums);
        CHECK(std::abs(sums.nats - want.nats) <= 2e-6 * static_cast<double>(s.rows));  // float32 losses of about 11
        CHECK(sums.weight == doctest::Approx(want.weight).epsilon(1e-6));
        CHECK(sums.named.front().value == 0.0);
        CHECK(relative_error(out, want.grad_NV) < bound(type));
      }
    };
    for_all(compare);
    for_all(compare, kVocabularies);
  }

  TEST_CASE("entropies of predictions, without padding and ignored targets; impossible ones add nothing") {
    const auto compare = [](at::ScalarType type, Size s) {
      const auto logits = randn({s.rows, s.dim + 5}, type).mul_(3);
      const auto targets = weighted_targets(s.rows, s.dim).ids_N;
      const auto want = entropy_truth(logits, targets, s.dim);
      for (const auto order : {Order::forward, Order::shuffled}) {
        const auto got = EmulatedOps(order).entropies(logits, targets, s.dim);
        CHECK((got - want).abs().max().item<double>() < 1e-5);  // float32 sums of terms of up to 11
      }
    };
    for_all(compare);
    for_all(compare, kVocabularies);
    auto logits = at::full({1, 50}, -std::numeric_limits<float>::infinity());
    logits.narrow(1, 10, 4).fill_(2);
    CHECK(EmulatedOps(Order::forward).entropies(logits, at::zeros({1}, at::kInt), 50).item<double>() ==
          doctest::Approx(std::log(4.0)));
  }

  TEST_CASE("losses of groups, alone and beside other sums") {
    for_all([](at::ScalarType type, Size s) {
      const auto logits = randn({s.rows, s.dim + 5}, type).mul_(3);
      check_groups(EmulatedOps(Order::shuffled), logits, s.rows, s.dim);
    });
    auto logits = at::zeros({2, 50});
    logits[0].fill_(std::numeric_limits<float>::quiet_NaN());
    StepSums sums(StepSums::names_of_groups({"bad", "good"}));
    const Targets targets(at::full({2}, 3, at::kInt), {}, at::tensor({0, 1}, at::kInt));
    const EmulatedOps ops(Order::forward);
    ops.cross_entropy(sums, logits, targets, 50, 1.0);
    ops.fetch(sums);
    CHECK(std::isnan(sums.named[0].value));  // and tells where to look
    CHECK(sums.named[1].value == doctest::Approx(std::log(50.0)));
  }

  TEST_CASE("a target of weight 0 is ignored, whatever its logits are; weights of 1 give the bits of no weights") {
    const EmulatedOps ops(Order::shuffled);
    const auto run = [&](at::Tensor logits, const Targets& targets) {
      StepSums sums;
      ops.cross_entropy(sums, logits, targets, 5000, 1.0);
      ops.fetch(sums);
      return std::make_tuple(sums.nats, sums.weight, logits);
    };
    auto logits = at::randn({3, 5000});
    const auto ids = at::full({3}, 3, at::kInt);
    const auto [nats, weight, grad] = run(logits.clone(), ids);
    const auto [nats_of_ones, weight_of_ones, grad_of_ones] = run(logits.clone(), {ids, at::ones({3})});
    CHECK(nats == nats_of_ones);
    CHECK(weight == weight_of_ones);
    CHECK(same_bits(grad, grad_of_ones));
    logits[1].fill_(std::numeric_limits<float>::quiet_NaN());
    const auto [rest, two, without] = run(logits.clone(), {ids, at::tensor({1.0f, 0.0f, 1.0f})});
    CHECK(std::isfinite(rest));
    CHECK(two == 2.0);
    CHECK(without[1].abs().max().item<float>() == 0);
    CHECK(same_bits(without[2], grad[2]));
  }

  TEST_CASE("rows are cast to the parameter dtype in one pass, whatever dtype and place they have") {
    at::manual_seed(7);
    std::vector<CastShard> rows;
    for (const std::int64_t n : {0, 1, 8, 33, 40000}) {
      for (int round = 0; round < 9; ++round) rows.push_back({at::empty({n}, at::kBFloat16), at::randn({n})});
    }
    rows.push_back({at::empty({70}, at::kHalf), at::randn({70})});
    rows.push_back({at::empty({7, 10}), at::randn({10, 7}).t()});
    EmulatedOps(Order::shuffled).cast_shards(rows);
    for (const auto& [to, from] : rows) CHECK(same_bits(to, from.to(to.scalar_type()).contiguous()));
  }

  TEST_CASE("sums of another dtype are set or added in one pass, at any alignment") {
    at::manual_seed(9);
    for (const auto type : kTypes) {
      std::vector<UpcastSum> rows;
      Tensors want;
      for (const std::int64_t n : {0, 1, 7, 8, 9, 33, 255, 32769, 40000}) {  // more than one launch takes
        for (const std::int64_t begin : {0, 3}) {
          for (const bool add : {false, true}) {
            rows.push_back({at::randn({n}), at::randn({n + begin}).to(type).narrow(0, begin, n), add});
            want.push_back(add ? rows.back().to + rows.back().from : rows.back().from.to(at::kFloat));
          }
        }
      }
      rows.push_back({at::randn({7, 10}).t(), at::randn({10, 7}).to(type), true});
      want.push_back(rows.back().to + rows.back().from);
      EmulatedOps(Order::shuffled).upcast_sums(rows);
      for (std::size_t i = 0; i < rows.size(); ++i) CHECK(same_bits(rows[i].to, want[i]));
    }
  }

  TEST_CASE("squares of many gradients, and AdamW of many parameters: gradients in float32 and in bf16") {
    at::manual_seed(6);
    const std::vector<std::int64_t> sizes{1, 7, 0, 8, 300, 32768, 32769, 65544};
    std::vector<GradPart> parts, wide_parts;
    for (int round = 0; round < 6; ++round) {
      for (const auto n : sizes) {
        parts.push_back({randn({n + 3}, parts.size() % 3 == 1 ? at::kBFloat16 : at::kFloat), n});
        wide_parts.push_back({parts.back().grad.to(at::kFloat), n});
      }
    }
    const double first = EmulatedOps(Order::forward).sum_squares(parts);
    CHECK(first == EmulatedOps(Order::shuffled).sum_squares(parts));
    CHECK(first == EmulatedOps(Order::forward).sum_squares(wide_parts));
    // At most 128 squares are summed in float32: 128 roundings of 2^-25 on average.
    CHECK(first == doctest::Approx(host_ops().sum_squares(wide_parts)).epsilon(1e-6));

    Tensors params, grads;
    for (const auto& part : parts) {
      params.push_back(at::randn({part.elements}));
      grads.push_back(part.grad.narrow(0, 3, part.elements));  // not aligned to a vector
    }
    check(
        at::kFloat,
        [&](const Ops& ops, const auto& as) {
          auto update = adamw_update();
          for (std::size_t i = 0; i < params.size(); ++i) {
            update.params.push_back(as(params[i]));
            update.exp_avg.push_back(at::zeros_like(update.params.back()));
            update.exp_avg_sq.push_back(at::zeros_like(update.params.back()));
          }
          for (update.step = 1; update.step <= 3; ++update.step) {
            update.grads.clear();  // PyTorch's update divides the gradients in place
            for (const auto& part : grads) {
              const auto grad = as(part);
              update.grads.push_back(at::cat({grad.new_zeros({3}), grad}).narrow(0, 3, grad.size(0)));
            }
            ops.adamw(update);
          }
          auto all = update.params;
          all.insert(all.end(), update.exp_avg.begin(), update.exp_avg.end());
          all.insert(all.end(), update.exp_avg_sq.begin(), update.exp_avg_sq.end());
          return all;
        },
        at::kFloat);  // plain updates support only float32
  }

  TEST_CASE("AdamW by its formula in float64") {
    at::manual_seed(8);
    auto param = at::randn({1000}), avg = at::randn({1000}), avg_sq = at::rand({1000});
    const auto grad = at::randn({1000});
    const auto p = wide(param), m = wide(avg), v = wide(avg_sq), g = wide(grad) / 3;
    auto update = adamw_update();
    update.params = {param};
    update.grads = {grad.clone()};
    update.exp_avg = {avg};
    update.exp_avg_sq = {avg_sq};
    update.step = 5;
    EmulatedOps(Order::shuffled).adamw(update);
    const auto want_m = 0.9 * m + 0.1 * g, want_v = 0.99 * v + 0.01 * g * g;
    const auto mean = want_m / (1 - std::pow(0.9, 5)), root = (want_v / (1 - std::pow(0.99, 5))).sqrt();
    // A few roundings of 2^-24 each.
    CHECK(relative_error(avg, want_m) < 5e-7);
    CHECK(relative_error(avg_sq, want_v) < 5e-7);
    CHECK(relative_error(param, p * (1 - 1e-2 * 0.1) - 1e-2 * mean / (root + 1e-8)) < 5e-7);
  }
}
