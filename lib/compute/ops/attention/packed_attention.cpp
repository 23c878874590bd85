// Attention, and packed attention that computes each document as a row of its own.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "lib/base/types/hash_functions.hpp"
#include "lib/compute/ops/ops.hpp"
#include "lib/compute/tensor/memory_scope.hpp"

namespace fsdp {
namespace {

at::Tensor tokens_of(const at::Tensor& x, const Packing::Document& document) {
  return x.narrow(0, document.first, document.length);
}

/// Zeroes padding rows, since uninitialised memory would reach the residual stream.
void clear_padding(const at::Tensor& x, const Packing& packing) {
  std::int64_t end = 0;
  const auto clear_to = [&](std::int64_t next) {
    if (next > end) x.narrow(0, end, next - end).zero_();
  };
  for (const auto& [first, length] : packing.documents) {
    clear_to(first);
    end = first + length;
  }
  clear_to(x.size(0));
}

}  // namespace

AttentionShape Ops::shape_of(const AttentionShape& shape, const Packing::Document& document) const {
  auto one = shape;
  one.packing = nullptr;
  one.rows = 1;
  one.query_length = document.length;
  if (shape.dropout == 0) return one;
  // The mask depends on the row's sample and on the position in the row, as other dropout masks do.
  const MemoryScope scope(MemoryCategory::activations, true);
  auto key = at::empty({1}, at::TensorOptions(at::kLong).device(host()));
  launch(1, 1, [&](std::int64_t, std::int64_t) {
    const auto row = document.first / shape.query_length;
    const auto of_row = shape.dropout_place.sample_keys_B.const_data_ptr<std::int64_t>()[row];
    const auto place = static_cast<std::uint64_t>(document.first - row * shape.query_length);
    key.data_ptr<std::int64_t>()[0] =
        static_cast<std::int64_t>(splitmix64_output(static_cast<std::uint64_t>(of_row) + place * kSplitmix64Step));
  });
  one.dropout_place.sample_keys_B = key;
  return one;
}

at::Tensor Ops::attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                          std::unique_ptr<AttentionState>* state) const {
  return shape.packing == nullptr ? row_attention(qkv_NC, shape, state) : packed_attention(qkv_NC, shape, state);
}

at::Tensor Ops::attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                   const AttentionShape& shape, std::unique_ptr<AttentionState> state) const {
  return shape.packing == nullptr ? row_attention_backward(grad_out_ND, qkv_NC, out_ND, shape, std::move(state))
                                  : packed_attention_backward(grad_out_ND, qkv_NC, out_ND, shape, std::move(state));
}

at::Tensor Ops::rotary_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                          const at::Tensor& out_ND, const AttentionShape& shape,
                                          std::unique_ptr<AttentionState> state, const Rotation& rotation) const {
  auto grad_qkv_NC = attention_backward(grad_out_ND, qkv_NC, out_ND, shape, std::move(state));
  // Keys follow queries in a row, so one pass rotates the heads of both.
  rope(grad_qkv_NC, shape.heads + shape.key_heads(), shape.head_size, rotation.table, rotation.place, true);
  return grad_qkv_NC;
}

at::Tensor Ops::packed_attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                                 std::unique_ptr<AttentionState>* state) const {
  const auto& documents = shape.packing->documents;
  auto out_ND = at::empty({qkv_NC.size(0), shape.heads * shape.head_size}, qkv_NC.options());
  auto saved = std::make_unique<AttentionState>();
  saved->documents.resize(documents.size());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    auto* keep = state != nullptr ? &saved->documents[i] : nullptr;
    tokens_of(out_ND, documents[i])
        .copy_(row_attention(tokens_of(qkv_NC, documents[i]), shape_of(shape, documents[i]), keep));
  }
  clear_padding(out_ND, *shape.packing);
  if (state != nullptr) *state = std::move(saved);
  return out_ND;
}

at::Tensor Ops::packed_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                          const at::Tensor& out_ND, const AttentionShape& shape,
                                          std::unique_ptr<AttentionState> state) const {
  const auto& documents = shape.packing->documents;
  auto& saved = *state;
  auto grad_qkv_NC = at::empty_like(qkv_NC);
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const auto& document = documents[i];
    tokens_of(grad_qkv_NC, document)
        .copy_(row_attention_backward(tokens_of(grad_out_ND, document), tokens_of(qkv_NC, document),
                                      tokens_of(out_ND, document), shape_of(shape, document),
                                      std::move(saved.documents[i])));
  }
  clear_padding(grad_qkv_NC, *shape.packing);
  return grad_qkv_NC;
}

}  // namespace fsdp
