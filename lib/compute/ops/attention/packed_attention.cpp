// Attention, and packed attention that computes each document as a row of its own. Documents that share tokens are made
// whole first: attention is a small part of the work, and every kernel takes whole documents.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

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
  for (const auto& document : packing.documents) {
    clear_to(document.first);
    end = document.first + document.length;
  }
  clear_to(x.size(0));
}

enum class Shared { copies, zeros };

/// \param x  rows of tokens as they are packed. \return rows of Packing::whole. \param shared  what they have where a
/// document shares a token of the one before it
at::Tensor whole_of(const at::Tensor& x, const Packing& packing, Shared shared) {
  auto whole = at::empty({packing.whole_tokens, x.size(1)}, x.options());
  for (std::size_t i = 0; i < packing.documents.size(); ++i) {
    const auto& document = packing.documents[i];
    const auto to = tokens_of(whole, packing.whole->documents[i]);
    to.narrow(0, document.shared, document.length).copy_(tokens_of(x, document));
    if (document.shared == 0) continue;
    const auto beginning = to.narrow(0, 0, document.shared);
    shared == Shared::zeros ? beginning.zero_()
                            : beginning.copy_(x.narrow(0, packing.documents[i - 1].first, document.shared));
  }
  clear_padding(whole, *packing.whole);
  return whole;
}

/// \return of rows of Packing::whole those that are packed
at::Tensor packed_of(const at::Tensor& whole, const Packing& packing, std::int64_t tokens) {
  auto x = at::empty({tokens, whole.size(1)}, whole.options());
  for (std::size_t i = 0; i < packing.documents.size(); ++i) {
    const auto& document = packing.documents[i];
    tokens_of(x, document)
        .copy_(tokens_of(whole, packing.whole->documents[i]).narrow(0, document.shared, document.length));
  }
  clear_padding(x, packing);
  return x;
}

/// The shape of attention of Packing::whole.
AttentionShape whole_shape(const AttentionShape& shape) {
  auto whole = shape;
  whole.packing = shape.packing->whole.get();
  whole.rows = 1;
  whole.query_length = shape.packing->whole_tokens;
  return whole;
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
    const auto& begins = shape.packing->row_begins;
    const auto row = std::ranges::upper_bound(begins, document.first) - begins.begin() - 1;
    const auto of_row = shape.dropout_place.sample_keys_B.const_data_ptr<std::int64_t>()[row];
    const auto place = static_cast<std::uint64_t>(document.first - begins[static_cast<std::size_t>(row)]);
    key.data_ptr<std::int64_t>()[0] =
        static_cast<std::int64_t>(splitmix64_output(static_cast<std::uint64_t>(of_row) + place * kSplitmix64Step));
  });
  one.dropout_place.sample_keys_B = key;
  return one;
}

at::Tensor Ops::attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                          std::unique_ptr<AttentionState>* state) const {
  if (shape.packing == nullptr) return row_attention(qkv_NC, shape, state);
  const auto& packing = *shape.packing;
  if (packing.whole == nullptr) return packed_attention(qkv_NC, shape, state);
  const auto whole_ND = packed_attention(whole_of(qkv_NC, packing, Shared::copies), whole_shape(shape), state);
  return packed_of(whole_ND, packing, qkv_NC.size(0));
}

at::Tensor Ops::attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                   const AttentionShape& shape, std::unique_ptr<AttentionState> state) const {
  if (shape.packing == nullptr) return row_attention_backward(grad_out_ND, qkv_NC, out_ND, shape, std::move(state));
  const auto& packing = *shape.packing;
  if (packing.whole == nullptr) return packed_attention_backward(grad_out_ND, qkv_NC, out_ND, shape, std::move(state));
  // A shared token's output is that of the document before, so its copies give gradients to keys and values alone.
  const auto whole_NC = packed_attention_backward(
      whole_of(grad_out_ND, packing, Shared::zeros), whole_of(qkv_NC, packing, Shared::copies),
      whole_of(out_ND, packing, Shared::copies), whole_shape(shape), std::move(state));
  auto grad_qkv_NC = packed_of(whole_NC, packing, qkv_NC.size(0));
  for (std::size_t i = 1; i < packing.documents.size(); ++i) {
    const auto shared = packing.documents[i].shared;
    if (shared == 0) continue;
    grad_qkv_NC.narrow(0, packing.documents[i - 1].first, shared)
        .add_(whole_NC.narrow(0, packing.whole->documents[i].first, shared));
  }
  return grad_qkv_NC;
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
