// Compares every backward with finite differences of its forward, for kernels and for plain operators.
#include "tests/support/torch_doctest.hpp"

#include "lib/compute/ops/cpu_ops.hpp"
#include "lib/compute/ops/device_ops.hpp"
#include "tests/support/tensor_compare.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const DeviceOps kPlain(at::kCPU);

/// Returns <grad_out, forward(x)> in float64.
template <typename Forward>
double value(const Forward& forward, const at::Tensor& x, const at::Tensor& grad_out) {
  return (forward(x).to(at::kDouble) * grad_out.to(at::kDouble)).sum().template item<double>();
}

/// The slope is largest along `gradient`: compares <gradient, direction> with central differences of float32 forwards.
/// A step of 1 % of x leaves a cubic term of about 1e-4; float32 sums of a thousand products have errors of 1e-5.
template <typename Forward>
void check_slope(const Forward& forward, const at::Tensor& x, const at::Tensor& grad_out, const at::Tensor& gradient) {
  const auto direction = gradient.to(at::kDouble) / gradient.to(at::kDouble).norm();
  const double step = 1e-2 * x.norm().template item<double>() / std::sqrt(static_cast<double>(x.numel()));
  const auto moved = [&](double by) { return (x.to(at::kDouble) + by * direction).to(at::kFloat); };
  const double slope = (value(forward, moved(step), grad_out) - value(forward, moved(-step), grad_out)) / (2 * step);
  const double want = (gradient.to(at::kDouble) * direction).sum().template item<double>();
  CHECK(want == doctest::Approx(slope).epsilon(3e-3));
}

template <typename Body>
void for_both(const Body& body) {
  for (const Ops* ops : {&host_ops(), static_cast<const Ops*>(&kPlain)}) {
    INFO((ops->on_host() ? "kernels" : "plain operators"));
    at::manual_seed(5);
    body(*ops);
  }
}

}  // namespace

TEST_SUITE("ops/derivatives") {
  TEST_CASE("norms: input, residual, scale and shift") {
    for_both([](const Ops& ops) {
      const auto x = at::randn({7, 33}), y = at::randn({7, 33}), gamma = at::randn({33}), beta = at::randn({33});
      const auto grad = at::randn({7, 33});
      const auto layer = [&](const at::Tensor& in) { return ops.add_layer_norm(in, y, {}, gamma, beta, 1e-5); };
      GradSlot gg{at::empty({33})}, gb{at::empty({33})}, rg{at::empty({33})}, again{at::empty({33})};
      const auto saved = layer(x);
      const auto dx = ops.layer_norm_backward({grad, {}, saved.sum_ND, saved, gamma}, {&gg, &gb, nullptr});
      check_slope([&](const at::Tensor& in) { return layer(in).out_ND; }, x, grad, dx);
      check_slope([&](const at::Tensor& in) { return ops.add_layer_norm(x, y, {}, in, beta, 1e-5).out_ND; }, gamma,
                  grad, gg.grad);
      check_slope([&](const at::Tensor& in) { return ops.add_layer_norm(x, y, {}, gamma, in, 1e-5).out_ND; }, beta,
                  grad, gb.grad);

      const auto rms = ops.add_rms_norm(x, y, {}, gamma, 1e-5);
      const auto rdx = ops.rms_norm_backward({grad, {}, rms.sum_ND, rms, gamma}, {&rg, nullptr, nullptr});
      check_slope([&](const at::Tensor& in) { return ops.add_rms_norm(in, y, {}, gamma, 1e-5).out_ND; }, x, grad, rdx);
      check_slope([&](const at::Tensor& in) { return ops.add_rms_norm(x, y, {}, in, 1e-5).out_ND; }, gamma, grad,
                  rg.grad);
      const RmsNorm shifted(1e-5, 1.0);
      GradSlot shifted_slot{at::empty({33})};
      const auto plus_one = ops.add_rms_norm(x, y, {}, gamma, shifted);
      CHECK(relative_error(plus_one.out_ND, ops.add_rms_norm(x, y, {}, gamma + 1, 1e-5).out_ND) < 1e-6);
      at::Tensor normed;
      const NormAgain more{{}, normed};
      const auto sdx =
          ops.rms_norm_backward({grad, {}, plus_one.sum_ND, plus_one, gamma}, {&shifted_slot, nullptr, nullptr}, &more);
      CHECK(relative_error(normed, plus_one.out_ND) < 1e-6);
      check_slope([&](const at::Tensor& in) { return ops.add_rms_norm(in, y, {}, gamma, shifted).out_ND; }, x, grad,
                  sdx);
      check_slope([&](const at::Tensor& in) { return ops.add_rms_norm(x, y, {}, in, shifted).out_ND; }, gamma, grad,
                  shifted_slot.grad);
      const auto with_residual = ops.rms_norm_backward({grad, y, rms.sum_ND, rms, gamma}, {&again, nullptr, nullptr});
      CHECK(relative_error(with_residual, rdx + y) < 1e-6);
    });
  }

  TEST_CASE("activations") {
    for_both([](const Ops& ops) {
      const auto x = at::randn({9, 21}), up = at::randn({9, 21}), bias = at::randn({21}), grad = at::randn({9, 21});
      auto pre = x.clone(), g = grad.clone();
      GradSlot sums{at::empty({21})};
      const auto act = ops.bias_gelu(pre, bias);
      at::Tensor again;
      ops.bias_gelu_backward(g, pre, &sums, &again);
      CHECK(relative_error(again, act) < 1e-6);
      check_slope([&](at::Tensor in) { return in = in.clone(), ops.bias_gelu(in, bias); }, x, grad, g);
      check_slope(
          [&](const at::Tensor& in) {
            auto copy = x.clone();
            return ops.bias_gelu(copy, in);
          },
          bias, grad, sums.grad);

      for (const auto gate : {GateActivation::silu, GateActivation::gelu_tanh}) {
        // Gate and up side by side in one matrix, as one product writes them.
        const auto both = at::cat({x, up}, 1);
        auto gate_grad = both.narrow(1, 0, 21), up_grad = both.narrow(1, 21, 21), out = grad.clone();
        const auto forward = ops.gated(gate, gate_grad, up_grad);
        ops.gated_backward(gate, out, gate_grad, up_grad);
        CHECK(relative_error(out, forward) < 1e-6);
        CHECK(relative_error(forward, ops.gated(gate, x, up)) < 1e-6);
        check_slope([&](const at::Tensor& in) { return ops.gated(gate, in, up); }, x, grad, gate_grad);
        check_slope([&](const at::Tensor& in) { return ops.gated(gate, x, in); }, up, grad, up_grad);
        CHECK(relative_error(forward, up * (gate == GateActivation::silu ? at::silu(x) : at::gelu(x, "tanh"))) < 1e-6);
      }
    });
  }

  TEST_CASE("rotary positions: the inverse is the derivative") {
    for_both([](const Ops& ops) {
      const std::vector<float> frequencies{1.0f, 0.3f, 0.1f, 0.01f};
      const auto table = ops.rope_table(frequencies, 16);
      const auto x = at::randn({10, 24}), grad = at::randn({10, 24});
      const auto turned = [&](const at::Tensor& in, bool inverse) {
        auto copy = in.clone();
        ops.rope(copy, 3, 8, table, {5, 2}, inverse);
        return copy;
      };
      check_slope([&](const at::Tensor& in) { return turned(in, false); }, x, grad, turned(grad, true));
      CHECK(relative_error(turned(turned(x, false), true), x) < 1e-6);
    });
  }

  TEST_CASE("rotary positions of the first elements of each head leave the other elements unchanged") {
    for_both([](const Ops& ops) {
      const auto table = ops.rope_table(std::vector<float>{1.0f, 0.3f, 0.1f}, 16);
      const auto x = at::randn({10, 24}), grad = at::randn({10, 24});
      const auto turned = [&](const at::Tensor& in, bool inverse) {
        auto copy = in.clone();
        ops.rope(copy, 3, 8, table, {5, 2}, inverse);
        return copy;
      };
      const auto heads = [](const at::Tensor& of) { return of.unflatten(1, {3, 8}); };
      auto part = heads(x).narrow(2, 0, 6).reshape({10, 18});
      ops.rope(part, 3, 6, table, {5, 2}, false);
      CHECK(same_bits(heads(turned(x, false)).narrow(2, 0, 6).reshape({10, 18}), part));
      CHECK(same_bits(heads(turned(x, false)).narrow(2, 6, 2), heads(x).narrow(2, 6, 2)));
      check_slope([&](const at::Tensor& in) { return turned(in, false); }, x, grad, turned(grad, true));
    });
  }

  TEST_CASE("embedding: gradients of rows with the same id are added") {
    for_both([](const Ops& ops) {
      const auto token = at::randn({11, 6}), position = at::randn({5, 6}), grad = at::randn({20, 6});
      const auto ids = at::randint(0, 11, {20}, at::kInt);
      auto token_grad = at::zeros({11, 6}), position_grad = at::zeros({5, 6});
      ops.embed_backward(&token_grad, &position_grad, grad, ids, {5, 0});
      check_slope([&](const at::Tensor& in) { return ops.embed(in, position, ids, {5, 0}); }, token, grad, token_grad);
      check_slope(
          [&](const at::Tensor& in) {
            return ops.embed(token, in, ids, {5, 0});
          },
          position, grad, position_grad);
    });
  }

  TEST_CASE("attention: short and long rows, grouped heads, dropout") {
    for_both([](const Ops& ops) {
      AttentionShape dropped{2, 12, 4, 8, 2, 0.3, {at::randint(1 << 30, {2}, at::kLong), 9}};
      for (const auto& s : {AttentionShape{2, 12, 4, 8}, AttentionShape{2, 12, 4, 8, 1}, dropped,
                            AttentionShape{1, kShortRow + 8, 2, 4}}) {
        CAPTURE(s.query_length);
        CAPTURE(s.kv_heads);
        const auto qkv = at::randn({s.rows * s.query_length, s.packed_width()});
        const auto grad = at::randn({s.rows * s.query_length, s.heads * s.head_size});
        std::unique_ptr<AttentionState> state;
        const auto out = ops.attention(qkv, s, &state);
        const auto grad_qkv = ops.attention_backward(grad, qkv, out, s, std::move(state));
        check_slope([&](const at::Tensor& in) { return ops.attention(in, s, nullptr); }, qkv, grad, grad_qkv);
      }
    });
  }

  TEST_CASE("cross-entropy") {
    for_both([](const Ops& ops) {
      const auto logits = at::randn({13, 17});
      auto targets = at::randint(0, 15, {13}, at::kInt);
      targets.narrow(0, 3, 2).fill_(-1);
      const auto loss = [&](const at::Tensor& in) {
        auto copy = in.clone();
        StepSums sum;
        ops.cross_entropy(sum, copy, targets, 15, 0.0);
        ops.fetch(sum);
        CHECK(sum.weight == 11);
        return at::full({}, sum.nats, at::kDouble);
      };
      auto gradient = logits.clone();
      StepSums sum;
      ops.cross_entropy(sum, gradient, targets, 15, 1.0);
      check_slope(loss, logits, at::ones({}), gradient);
    });
  }
}
