#pragma once
// Operations whose memory on a real device is compared with that on meta tensors.
#include "tests/support/operation_room.hpp"
#include "tests/support/update_rooms.hpp"

namespace fsdp::test {

inline Operation attention(const AttentionShape& shape) {
  return [shape](const Ops& ops, const Inputs& in) {
    return [&ops, shape, qkv = in.matrix(shape.rows * shape.query_length, shape.packed_width()),
            grad = in.matrix(shape.rows * shape.query_length, shape.heads * shape.head_size)] {
      std::unique_ptr<AttentionState> state;
      auto out = ops.attention(qkv, shape, &state);
      auto grad_qkv = ops.attention_backward(grad, qkv, out, shape, std::move(state));
      return Kept{out, grad_qkv};
    };
  };
}

inline Operation norm(bool rms) {
  return [rms](const Ops& ops, const Inputs& in) {
    return [&ops, rms, x = in.matrix(700, 64), y = in.matrix(700, 64), bias = in.vector(64), gamma = in.vector(64),
            beta = in.vector(64), floats = in.floats(64)]() mutable {
      const auto saved =
          rms ? ops.add_rms_norm(x, y, bias, gamma, 1e-5) : ops.add_layer_norm(x, y, bias, gamma, beta, 1e-5);
      at::Tensor again_ND;
      const NormAgain again{beta, again_ND};
      const NormBackward norm{y, y, x, saved, gamma};
      GradSlot gg{floats}, gb{floats, true}, gy{floats, true};
      auto grad = rms ? ops.rms_norm_backward(norm, {&gg, nullptr, &gy}, &again)
                      : ops.layer_norm_backward(norm, {&gg, &gb, &gy}, &again);
      return Kept{saved.out_ND, saved.sum_ND, grad, again_ND};
    };
  };
}

/// Returns one case of each operation except attention.
inline std::vector<OperationCase> operation_cases() {
  auto all = update_cases();
  const std::vector<OperationCase> others{
      {"linear",
       [](const Ops& ops, const Inputs& in) {
         return [&ops, x = in.matrix(96, 128), w = in.matrix(80, 128)] { return Kept{ops.linear(x, w)}; };
       }},
      {"linear_backward",
       [](const Ops& ops, const Inputs& in) {
         return [&ops, g = in.matrix(96, 80), w = in.matrix(80, 128)] {
           auto out = ops.linear_backward(g, w);
           ops.linear_backward_add(out, g, w);
           return Kept{out};
         };
       }},
      {"weight_grad",
       [](const Ops& ops, const Inputs& in) {
         return [&ops, g = in.matrix(96, 80), x = in.matrix(96, 128), same = in.matrix(80, 128),
                 wide = in.floats(80 * 128).view({80, 128})] {
           for (const auto& grad : {same, wide}) {
             GradSlot slot{grad, false};
             ops.weight_grad(&slot, g, x);
             ops.weight_grad(&slot, g, x);
           }
           return Kept{};
         };
       }},
      {"products in 8 bits",
       [](const Ops& ops, const Inputs& in) {
         return [&ops, g = in.matrix(90, 80), x = in.matrix(90, 128), w = in.matrix(80, 128), grad = in.matrix(80, 128),
                 wide = in.floats(80 * 128).view({80, 128})]() mutable {
           if (!ops.fp8_problem().empty()) return Kept{};
           const auto g8 = ops.to_fp8(g, Fp8Format::e5m2, Fp8Sides::both);
           const auto x8 = ops.to_fp8(x, Fp8Format::e4m3, Fp8Sides::both);
           const auto w8 = ops.to_fp8(w, Fp8Format::e4m3, Fp8Sides::rows);
           ops.fp8_product(g, {x8.rows_RC, x8.inverse}, {w8.rows_RC, w8.inverse}, Fp8Sums::fast, false);
           auto between = x.narrow(1, 4, 80);  // rows aligned to 16 bytes, or not
           ops.fp8_product(between, {x8.rows_RC, x8.inverse}, {w8.rows_RC, w8.inverse}, Fp8Sums::fast, false);
           for (auto* out : {&grad, &wide}) {
             for (const bool add : {false, true})
               ops.fp8_product(*out, {g8.columns_CR, g8.inverse}, {x8.columns_CR, x8.inverse}, Fp8Sums::exact, add);
           }
           return Kept{g8.rows_RC, g8.columns_CR, x8.rows_RC, x8.columns_CR, w8.rows_RC, ops.fp8_columns(w8.rows_RC)};
         };
       }},
      {"accumulate",
       [](const Ops& ops, const Inputs& in) {
         return [&ops, values = in.floats(640), same = in.vector(640)] {
           GradSlot slot{same, false};
           ops.accumulate(&slot, values);
           ops.accumulate(&slot, values);
           return Kept{};
         };
       }},
      {"embed",
       [](const Ops& ops, const Inputs& in) {
         return
             [&ops, token = in.matrix(50, 64), position = in.matrix(20, 64), ids = in.ids(40), g = in.matrix(40, 64)] {
               auto out = ops.embed(token, position, ids, {20, 0});
               auto grad_token = token.clone(), grad_position = position.clone();
               ops.embed_backward(&grad_token, &grad_position, g, ids, {20, 0});
               return Kept{out};
             };
       }},
      {"layer_norm", norm(false)},
      {"rms_norm", norm(true)},
      {"gelu, swiglu, biases",
       [](const Ops& ops, const Inputs& in) {
         return [&ops, a = in.matrix(60, 96), b = in.matrix(60, 96), g = in.matrix(60, 96), bias = in.vector(96),
                 sums = in.floats(96)]() mutable {
           auto out = ops.bias_gelu(a, bias);
           at::Tensor again;
           GradSlot slot{sums};
           ops.bias_gelu_backward(g, a, &slot, &again);
           auto gated = ops.gated(GateActivation::silu, a, b);
           ops.gated_backward(GateActivation::silu, g, a, b);
           ops.add_bias(a, b, bias);
           ops.bias_grad(&slot, a);
           return Kept{out, again, gated};
         };
       }},
      {"rope",
       [](const Ops& ops, const Inputs& in) {
         return [&ops, x = in.matrix(60, 96)]() mutable {
           const std::vector<float> frequencies(8, 0.5f);
           const auto table = ops.rope_table(frequencies, 256);
           ops.rope(x, 4, 16, table, {30, 0}, false);
           return Kept{table.cos_PH, table.sin_PH};
         };
       }},
      {"dropout",
       [](const Ops& ops, const Inputs& in) {
         // Keys of samples are host tensors in both runs, as data loaders make them.
         return [&ops, x = in.matrix(60, 96), keys = at::zeros({3}, at::kLong)]() mutable {
           ops.dropout(x, ops.dropout_keys({keys, 7}, 20, 3), 0.5);
           return Kept{};
         };
       }},
      {"cross_entropy",
       [](const Ops& ops, const Inputs& in) {
         return [&ops, logits = in.matrix(60, 96), targets = in.ids(60)]() mutable {
           StepSums sum;
           ops.cross_entropy(sum, logits, targets, 90, 1.0);
           ops.fetch(sum);
           return Kept{};
         };
       }},
      {"entropies",
       [](const Ops& ops, const Inputs& in) {
         return [&ops, logits = in.matrix(60, 96), targets = in.ids(60)] {
           return Kept{ops.entropies(logits, targets, 90)};
         };
       }},
  };
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

}  // namespace fsdp::test
