#include "tests/support/torch_doctest.hpp"

#include <ATen/Parallel.h>

#include <array>

#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/device_ops.hpp"
#include "tests/support/loss_truth.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

/// Both sides work in float32 and sum at most 700 rows: 1e-5. In 16 bits the plain operators round after each of two or
/// three steps where the kernels round once: a few units of 2^-9 (bf16) or 2^-12 (fp16).
double bound(at::ScalarType type) { return type == at::kFloat ? 1e-5 : type == at::kBFloat16 ? 1e-2 : 1.5e-3; }

at::Tensor randn(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) { return at::randn(sizes).to(type); }

struct Size {
  std::int64_t rows;
  std::int64_t dim;
};
constexpr Size kSizes[] = {{0, 16}, {1, 7}, {33, 17}, {5, 257}, {700, 257}};

/// Runs body(type, size) for all combinations; the last size is large enough to be split among threads.
template <typename Body>
void for_all(const Body& body) {
  at::manual_seed(1);
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    for (const auto type : kTypes) {
      for (const auto size : kSizes) {
        INFO(std::string(c10::toString(type)), " rows ", size.rows, " dim ", size.dim, " threads ", threads);
        body(type, size);
      }
    }
  }
  at::set_num_threads(1);
}

const DeviceOps kPlain(at::kCPU);

}  // namespace

TEST_SUITE("ops") {
  TEST_CASE("embed: kernels equal the plain operators") {
    for_all([](at::ScalarType type, Size s) {
      const auto token = randn({11, s.dim}, type), position = randn({20, s.dim}, type);
      const auto ids = at::randint(0, 11, {s.rows}, at::kInt);
      const auto run = [&](const Ops& ops) { return ops.embed(token, position, ids, {7, 3}); };
      CHECK(same_bits(run(host_ops()), run(kPlain)));
    });
  }

  TEST_CASE("embed_backward: into gradients of every dtype, for activations of every dtype") {
    for_all([](at::ScalarType type, Size s) {
      for (const auto wire : kTypes) {
        INFO("gradient ", std::string(c10::toString(wire)));
        const auto grad = randn({s.rows, s.dim}, type);
        const auto ids = at::randint(0, 300, {s.rows}, at::kInt);  // ids occur a few times: 16 bits suffice
        const auto run = [&](const Ops& ops) {
          auto token = at::ones({300, s.dim}, wire), position = at::ones({350, s.dim}, wire);
          ops.embed_backward(&token, &position, grad, ids, {350, 0});
          return at::cat({token, position});
        };
        CHECK(relative_error(run(host_ops()), run(kPlain)) < std::max(bound(type), bound(wire)));
      }
    });
  }

  TEST_CASE("embed_backward: the gradient of a frequent id stays accurate in 16 bits") {
    for (const auto wire : {at::kBFloat16, at::kHalf}) {
      const auto grad = at::full({3000, 32}, 0.01, wire);
      const auto ids = at::full({3000}, 7, at::kInt);
      auto token = at::zeros({9, 32}, wire), position = at::zeros({10, 32}, wire);
      for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&kPlain)}) {
        token.zero_();
        position.zero_();
        ops->embed_backward(&token, &position, grad, ids, {10, 0});
        // Rounded once: within half a unit in the last place of 8 or 11 bits.
        const auto within = wire == at::kBFloat16 ? 1.0 / 256 : 1.0 / 2048;
        const double each = grad[0][0].item<double>();
        CHECK((token[7].to(at::kDouble) / (3000 * each) - 1).abs().max().item<double>() <= within);
        CHECK((position.to(at::kDouble) / (300 * each) - 1).abs().max().item<double>() <= within);
        CHECK(token.narrow(0, 0, 7).any().item<bool>() == false);
      }
    }
  }

  TEST_CASE("add_layer_norm: forward") {
    for_all([](at::ScalarType type, Size s) {
      const auto x = randn({s.rows, s.dim}, type), y = randn({s.rows, s.dim}, type);
      const auto bias = randn({s.dim}, type), gamma = randn({s.dim}, type), beta = randn({s.dim}, type);
      for (int form = 0; form < 3; ++form) {
        const auto run = [&](const Ops& ops) {
          return ops.add_layer_norm(x, form > 0 ? y : at::Tensor(), form > 1 ? bias : at::Tensor(), gamma, beta, 1e-5);
        };
        const auto got = run(host_ops()), want = run(kPlain);
        CHECK(relative_error(got.sum_ND, want.sum_ND) < bound(type));
        CHECK(relative_error(got.out_ND, want.out_ND) < bound(type));
        CHECK(relative_error(got.mean_N, want.mean_N) < 10 * bound(type));  // means of normal values are near 0
        CHECK(relative_error(got.rstd_N, want.rstd_N) < bound(type));
      }
    });
  }

  TEST_CASE("layer_norm_backward: input, scale, shift and the preceding bias") {
    for_all([](at::ScalarType type, Size s) {
      const auto x = randn({s.rows, s.dim}, type), grad = randn({s.rows, s.dim}, type);
      const auto residual = randn({s.rows, s.dim}, type);
      const auto gamma = randn({s.dim}, type), beta = randn({s.dim}, type);
      for (const bool with_residual : {false, true}) {
        const auto run = [&](const Ops& ops, at::ScalarType as) {
          GradSlot dgamma{at::ones({s.dim}), true}, dbeta{at::ones({s.dim}), true}, dbias{at::ones({s.dim}), true};
          const auto saved = ops.add_layer_norm(x.to(as), {}, {}, gamma.to(as), beta.to(as), 1e-5);
          auto dx = ops.layer_norm_backward(
              {grad.to(as), with_residual ? residual.to(as) : at::Tensor(), x.to(as), saved, gamma.to(as)},
              {&dgamma, &dbeta, with_residual ? &dbias : nullptr});
          return std::vector<at::Tensor>{dx, dgamma.grad, dbeta.grad, dbias.grad};
        };
        const auto got = run(host_ops(), type), want = run(kPlain, type);
        const auto exact = run(kPlain, at::kFloat);
        CHECK(relative_error(got[0], want[0]) < bound(type));
        // The plain operators sum scale and shift in 16 bits; ours are compared with sums in float32.
        for (std::size_t i = 1; i < 3; ++i) CHECK(relative_error(got[i], want[i]) < 5 * bound(type));
        CHECK(relative_error(got[1], exact[1]) < 1e-5);
        CHECK(relative_error(got[2], exact[2]) < 1e-5);
        CHECK(relative_error(got[3], want[3]) < bound(type));
      }
    });
  }

  TEST_CASE("bias_gelu: forward and backward") {
    for_all([](at::ScalarType type, Size s) {
      const auto x = randn({s.rows, s.dim}, type), grad = randn({s.rows, s.dim}, type), bias = randn({s.dim}, type);
      const auto run = [&](const Ops& ops) {
        auto pre = x.clone();
        const auto out = ops.bias_gelu(pre, bias);
        auto g = grad.clone();
        GradSlot dbias{at::ones({s.dim}), true};
        ops.bias_gelu_backward(g, pre, &dbias);
        return std::vector<at::Tensor>{pre, out, g, dbias.grad};
      };
      const auto got = run(host_ops()), want = run(kPlain);
      for (std::size_t i = 0; i < got.size(); ++i) CHECK(relative_error(got[i], want[i]) < bound(type));
    });
  }

  TEST_CASE("add_bias and bias_grad") {
    for_all([](at::ScalarType type, Size s) {
      const auto x = randn({s.rows, s.dim}, type), y = randn({s.rows, s.dim}, type), bias = randn({s.dim}, type);
      for (int form = 1; form < 4; ++form) {
        const auto run = [&](const Ops& ops) {
          auto sum = x.clone();
          ops.add_bias(sum, (form & 1) != 0 ? y : at::Tensor(), (form & 2) != 0 ? bias : at::Tensor());
          return sum;
        };
        CHECK(relative_error(run(host_ops()), run(kPlain)) < bound(type));
      }
      const auto run = [&](const Ops& ops) {
        GradSlot sum{at::ones({s.dim}), true};
        ops.bias_grad(&sum, x);
        return sum.grad;
      };
      CHECK(relative_error(run(host_ops()), run(kPlain)) < 1e-5);  // summed in float32 on both sides
    });
  }

  TEST_CASE("cross_entropy: loss and gradient, with padding and ignored targets") {
    for_all([](at::ScalarType type, Size s) {
      const auto logits = randn({s.rows, s.dim + 5}, type).mul_(3);
      auto targets = at::randint(0, s.dim, {s.rows}, at::kInt);
      if (s.rows > 2) targets.narrow(0, 1, 2).fill_(-1);
      const auto run = [&](const Ops& ops, double scale) {
        auto out = logits.clone();
        StepSums result;
        ops.cross_entropy(result, out, targets, s.dim, scale);
        ops.fetch(result);
        return std::make_pair(result, out);
      };
      const auto [got, got_grad] = run(host_ops(), 0.5);
      const auto [want, want_grad] = run(kPlain, 0.5);
      CHECK(got.weight == want.weight);
      CHECK(got.nats == doctest::Approx(want.nats).epsilon(1e-6));
      CHECK(relative_error(got_grad, want_grad) < bound(type));
      const auto [loss_only, kept] = run(host_ops(), 0.0);
      CHECK(loss_only.nats == got.nats);
      CHECK(same_bits(kept, logits));
    });
  }

  TEST_CASE("cross_entropy: losses of groups, alone and beside other sums") {
    for_all([](at::ScalarType type, Size s) {
      const auto logits = randn({s.rows, s.dim + 5}, type).mul_(3);
      for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&kPlain)}) check_groups(*ops, logits, s.rows, s.dim);
    });
  }

  TEST_CASE("cross_entropy with weights equals torch's losses times weights, and their gradient") {
    for_all([](at::ScalarType type, Size s) {
      const auto logits = randn({s.rows, s.dim + 5}, type).mul_(3);
      const auto targets = weighted_targets(s.rows, s.dim);
      const auto want = loss_truth(logits, targets, s.dim, 0.5);
      for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&kPlain)}) {
        for (const double scale : {0.5, 0.0}) {
          auto out = logits.clone();
          StepSums sums;
          ops->cross_entropy(sums, out, targets, s.dim, scale);
          ops->fetch(sums);
          CHECK(std::abs(sums.nats - want.nats) <= 1e-6 * static_cast<double>(s.rows));
          CHECK(sums.weight == doctest::Approx(want.weight).epsilon(1e-6));
          if (scale == 0) CHECK(same_bits(out, logits));
          if (scale != 0) CHECK(relative_error(out, want.grad_NV) < bound(type));
        }
      }
    });
  }

  TEST_CASE("cross_entropy: weights of 1 give the bits of no weights") {
    for_all([](at::ScalarType type, Size s) {
      const auto logits = randn({s.rows, s.dim + 5}, type);
      const auto targets = weighted_targets(s.rows, s.dim).ids_N;
      for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&kPlain)}) {
        const auto run = [&](const at::Tensor& weights) {
          auto out = logits.clone();
          StepSums sums;
          ops->cross_entropy(sums, out, {targets, weights}, s.dim, 0.3);
          ops->fetch(sums);
          return std::make_tuple(sums.nats, sums.weight, out);
        };
        const auto [nats, weight, grad] = run({});
        const auto [nats_of_ones, weight_of_ones, grad_of_ones] = run(at::ones({s.rows}));
        CHECK(nats == nats_of_ones);
        CHECK(weight == weight_of_ones);
        CHECK(same_bits(grad, grad_of_ones));
      }
    });
  }

  TEST_CASE("entropies of predictions, without padding and ignored targets") {
    for_all([](at::ScalarType type, Size s) {
      const auto logits = randn({s.rows, s.dim + 5}, type).mul_(3);
      const auto targets = weighted_targets(s.rows, s.dim).ids_N;
      const auto want = entropy_truth(logits, targets, s.dim);
      for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&kPlain)}) {
        const auto got = ops->entropies(logits, targets, s.dim);
        CHECK(at::allclose(got.to(at::kDouble), want, 0, 1e-5));  // float32 sums of terms of up to 9
      }
    });
  }

  TEST_CASE("threads: one and three give equal results") {
    at::manual_seed(2);
    const auto x = randn({700, 257}), grad = randn({700, 257}), gamma = randn({257}), beta = randn({257});
    const auto targets = at::randint(0, 257, {700}, at::kInt);
    const auto keys = at::randint(0, 1 << 30, {700}, at::kLong);
    const auto& ops = host_ops();
    const auto run = [&](int threads) {
      at::set_num_threads(threads);
      auto saved = ops.add_layer_norm(x, grad, {}, gamma, beta, 1e-5);
      auto pre = x.clone(), g = grad.clone(), logits = x.clone(), dropped = x.clone();
      std::array<GradSlot, 4> sums;
      for (auto& slot : sums) slot.grad = at::empty({257});
      auto dx = ops.layer_norm_backward({grad, x, saved.sum_ND, saved, gamma}, {&sums[0], &sums[1], &sums[2]});
      auto act = ops.bias_gelu(pre, beta);
      ops.bias_gelu_backward(g, pre, &sums[3]);
      StepSums loss;
      ops.cross_entropy(loss, logits, targets, 257, 1.0);
      ops.dropout(dropped, keys, 0.3);
      at::set_num_threads(1);
      return std::make_tuple(std::vector<at::Tensor>{saved.out_ND, dx, act, g, logits, dropped},
                             std::vector<at::Tensor>{sums[0].grad, sums[1].grad, sums[2].grad, sums[3].grad},
                             loss.nats);
    };
    const auto [rows1, sums1, loss1] = run(1);
    const auto [rows3, sums3, loss3] = run(3);
    for (std::size_t i = 0; i < rows1.size(); ++i) CHECK(same_bits(rows1[i], rows3[i]));
    // Column sums over 700 rows in two or three pieces: float32 roundings of sums in another order.
    for (std::size_t i = 0; i < sums1.size(); ++i) CHECK(relative_error(sums3[i], sums1[i]) < 2e-6);
    CHECK(loss3 == doctest::Approx(loss1).epsilon(1e-12));
  }

  TEST_CASE("dropout: its own backward, and the same mask for the same key wherever the row is") {
    const auto& ops = host_ops();
    const auto keys = at::randint(0, 1 << 30, {40}, at::kLong);
    auto ones = at::ones({40, 33});
    ops.dropout(ones, keys, 0.25);
    auto moved = at::ones({3, 33});
    ops.dropout(moved, keys.narrow(0, 20, 3).contiguous(), 0.25);
    CHECK(same_bits(moved, ones.narrow(0, 20, 3)));
    const auto x = at::randn({40, 33});
    auto dropped = x.clone();
    ops.dropout(dropped, keys, 0.25);
    CHECK(relative_error(dropped, x * ones) == 0.0);
  }
}
