// Blocked attention: batched products and one softmax kernel between them, with the scores of one block of queries.
//
// Query heads that share keys are rows of one matrix: queries are [B * kv_heads, L * group, head_size], so that a block
// of queries is a range of rows, and one batched product serves all heads of all sequences.
#include <ATen/TensorOperators.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "lib/compute/ops/attention/packed_heads.hpp"
#include "lib/compute/ops/attention/query_blocks.hpp"
#include "lib/compute/ops/device_ops.hpp"
#include "lib/compute/ops/fused_args.hpp"

namespace fsdp {

using namespace detail;

namespace {

/// \return a view [B, kv_heads, L, group, head_size] of [B, heads, L, head_size]
at::Tensor by_groups(const at::Tensor& x_BHLD, const AttentionShape& s) {
  return x_BHLD.unflatten(1, {s.key_heads(), s.group()}).transpose(2, 3);
}

/// \return contiguous [B * kv_heads, L * group, head_size]
at::Tensor query_rows(const at::Tensor& x_BHLD, const AttentionShape& s) {
  return by_groups(x_BHLD, s).contiguous().view({s.rows * s.key_heads(), s.query_length * s.group(), s.head_size});
}

/// [B * kv_heads, L, head_size]
at::Tensor key_rows(const at::Tensor& x_BHLD, const AttentionShape& s) {
  return x_BHLD.contiguous().view({s.rows * s.key_heads(), s.query_length, s.head_size});
}

at::Tensor as_grouped(const at::Tensor& rows, const AttentionShape& s) {
  return rows.view({s.rows, s.key_heads(), s.query_length, s.group(), s.head_size});
}

/// Buffer for the scores of one block, reused by all blocks.
class ScoreRoom {
 public:
  ScoreRoom(const at::TensorOptions& options, const AttentionShape& s)
      : shape_(s), all_(at::empty({s.rows * s.heads * most_scores(s)}, options)) {}
  /// [B * kv_heads, queries * group, keys], strided.
  at::Tensor of(const QueryBlock& block) const {
    const auto stride = score_stride(block), rows = block.queries * shape_.group();
    return all_.as_strided({shape_.rows * shape_.key_heads(), rows, block.keys}, {rows * stride, stride, 1});
  }

 private:
  AttentionShape shape_;
  at::Tensor all_;
};

at::Tensor queries_in(const at::Tensor& rows, const QueryBlock& block, const AttentionShape& s) {
  return rows.narrow(1, block.first_query * s.group(), block.queries * s.group());
}
at::Tensor keys_in(const at::Tensor& rows, const QueryBlock& block) {
  return rows.narrow(1, block.first_key, block.keys);
}

fused::Band band_of(const AttentionShape& s, const QueryBlock& block, const at::Tensor& scores, const at::Tensor& probs,
                    const at::Tensor& log_sums) {
  fused::Band pass{};
  pass.type = kernel_type(probs);
  pass.scores = floats_in(scores);
  pass.probs = address_in(probs);
  pass.log_sums = floats_in(log_sums);
  pass.scale = score_scale(s);
  pass.softcap = static_cast<float>(s.softcap);
  pass.stride = static_cast<int>(score_stride(block));
  pass.packed = are_packed(pass.stride, {pass.scores, pass.probs});
  pass.rows = static_cast<int>(block.queries * s.group());
  pass.keys = static_cast<int>(block.keys);
  pass.group = static_cast<int>(s.group());
  pass.kv_heads = static_cast<int>(s.key_heads());
  pass.head_size = static_cast<int>(s.head_size);
  pass.first_column = static_cast<int>(block.first_query - block.first_key);
  pass.matrices = s.rows * s.key_heads();
  pass.length = s.query_length;
  pass.first_query = block.first_query;
  pass.window = s.window;
  return pass;
}

/// Calls body(shape, first) for groups of at most sequences_at_once() sequences.
template <typename Body>
void for_sequences(const Ops& ops, const AttentionShape& s, const Body& body) {
  const auto at_once = sequences_at_once(s);
  ops.repeat((s.rows + at_once - 1) / at_once, [&](std::int64_t i) {
    auto some = s;
    some.rows = std::min(at_once, s.rows - i * at_once);
    body(some, i * at_once);
  });
}

at::Tensor tokens_of(const at::Tensor& x_NC, const AttentionShape& some, std::int64_t first) {
  return x_NC.narrow(0, first * some.query_length, some.rows * some.query_length);
}

at::Tensor sums_of(const at::Tensor& log_sums, const AttentionShape& some, std::int64_t first) {
  return log_sums.defined() ? log_sums.narrow(0, first * some.key_heads(), some.rows * some.key_heads()) : log_sums;
}

}  // namespace

bool DeviceOps::attends_in_blocks(const at::Tensor& qkv_NC, const AttentionShape& s) const {
  return has_kernels() && s.dropout == 0 && s.rows > 0 && s.query_length > 0 && has_kernel_type(qkv_NC);
}

void DeviceOps::batched_product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) const {
  const auto type = out.scalar_type();
  if (add) {
    at::baddbmm_out(out, out, a.to(type), b.to(type));
  } else {
    at::bmm_out(out, a.to(type), b.to(type));
  }
}

void DeviceOps::attend_in_blocks(const at::Tensor& qkv_NC, const AttentionShape& s, const at::Tensor& out_ND,
                                 const at::Tensor& log_sums) const {
  const auto q = query_rows(part_of(qkv_NC, s, Part::q), s);
  const auto k = key_rows(part_of(qkv_NC, s, Part::k), s), v = key_rows(part_of(qkv_NC, s, Part::v), s);
  const auto out = at::empty_like(q);
  const ScoreRoom products(qkv_NC.options().dtype(at::kFloat), s);
  const auto narrow = qkv_NC.scalar_type() == at::kFloat ? products : ScoreRoom(qkv_NC.options(), s);
  for (std::int64_t i = 0; i < num_query_blocks(s); ++i) {
    const auto block = query_block(s, i);
    const auto scores = products.of(block), probs = narrow.of(block);
    batched_product(scores, queries_in(q, block, s), keys_in(k, block).transpose(1, 2), false);
    fused_->band_softmax(band_of(s, block, scores, probs, log_sums));
    batched_product(queries_in(out, block, s), probs, keys_in(v, block), false);
  }
  by_groups(heads_of(out_ND, s), s).copy_(as_grouped(out, s));
}

at::Tensor DeviceOps::row_attention(const at::Tensor& qkv_NC, const AttentionShape& s,
                                    std::unique_ptr<AttentionState>* state) const {
  if (!attends_in_blocks(qkv_NC, s)) return formula_attention(qkv_NC, s, state);
  const auto dtype = qkv_NC.scalar_type(), type = block_type(dtype);
  if (type != dtype) return row_attention(qkv_NC.to(type), s, state).to(dtype);
  auto out_ND = at::empty({s.rows * s.query_length, s.heads * s.head_size}, qkv_NC.options());
  auto saved = std::make_unique<AttentionState>();
  if (state != nullptr)
    saved->log_sums =
        at::empty({s.rows * s.key_heads(), s.query_length * s.group()}, qkv_NC.options().dtype(at::kFloat));
  for_sequences(*this, s, [&](const AttentionShape& some, std::int64_t first) {
    attend_in_blocks(tokens_of(qkv_NC, some, first), some, tokens_of(out_ND, some, first),
                     sums_of(saved->log_sums, some, first));
  });
  if (state != nullptr) *state = std::move(saved);
  return out_ND;
}

void DeviceOps::attend_in_blocks_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                          const at::Tensor& out_ND, const AttentionShape& s, const at::Tensor& log_sums,
                                          const at::Tensor& grad_qkv_NC) const {
  const auto q = query_rows(part_of(qkv_NC, s, Part::q), s), grad_out = query_rows(heads_of(grad_out_ND, s), s);
  const auto k = key_rows(part_of(qkv_NC, s, Part::k), s), v = key_rows(part_of(qkv_NC, s, Part::v), s);
  const auto grad_q = at::empty_like(q);
  // Sums over blocks are float32 for any dtype.
  const auto wide = qkv_NC.options().dtype(at::kFloat);
  const auto sum_k = at::zeros(k.sizes(), wide), sum_v = at::zeros(v.sizes(), wide);
  const ScoreRoom products(wide, s), of_grads(qkv_NC.options(), s);
  const auto narrow = qkv_NC.scalar_type() == at::kFloat ? products : ScoreRoom(qkv_NC.options(), s);
  for (std::int64_t i = 0; i < num_query_blocks(s); ++i) {
    const auto block = query_block(s, i);
    const auto scores = products.of(block), probs = narrow.of(block), grads = of_grads.of(block);
    const auto q_here = queries_in(q, block, s), grad_here = queries_in(grad_out, block, s);
    batched_product(scores, q_here, keys_in(k, block).transpose(1, 2), false);
    batched_product(grads, grad_here, keys_in(v, block).transpose(1, 2), false);
    auto pass = band_of(s, block, scores, probs, log_sums);
    pass.grads = address_in(grads);
    pass.out_ND = address_of(out_ND);
    pass.grad_out_ND = address_of(grad_out_ND);
    pass.packed = pass.packed && are_packed(s.head_size, {pass.grads, pass.out_ND, pass.grad_out_ND});
    fused_->band_softmax_backward(pass);
    batched_product(keys_in(sum_v, block), probs.transpose(1, 2), grad_here, true);
    batched_product(queries_in(grad_q, block, s), grads, keys_in(k, block), false);
    batched_product(keys_in(sum_k, block), grads.transpose(1, 2), q_here, true);
  }
  by_groups(part_of(grad_qkv_NC, s, Part::q), s).copy_(as_grouped(grad_q, s));
  const auto grad_k = part_of(grad_qkv_NC, s, Part::k), grad_v = part_of(grad_qkv_NC, s, Part::v);
  grad_k.copy_(sum_k.view(grad_k.sizes()));
  grad_v.copy_(sum_v.view(grad_v.sizes()));
}

at::Tensor DeviceOps::row_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                             const at::Tensor& out_ND, const AttentionShape& s,
                                             std::unique_ptr<AttentionState> state) const {
  if (!attends_in_blocks(qkv_NC, s)) return formula_attention_backward(grad_out_ND, qkv_NC, s, std::move(state));
  const auto dtype = qkv_NC.scalar_type(), type = block_type(dtype);
  if (type != dtype)
    return row_attention_backward(grad_out_ND.to(type), qkv_NC.to(type), out_ND.to(type), s, std::move(state))
        .to(dtype);
  const auto& saved = *state;
  const auto grad = grad_out_ND.contiguous(), out = out_ND.contiguous();
  auto grad_qkv_NC = at::empty_like(qkv_NC);
  for_sequences(*this, s, [&](const AttentionShape& some, std::int64_t first) {
    attend_in_blocks_backward(tokens_of(grad, some, first), tokens_of(qkv_NC, some, first), tokens_of(out, some, first),
                              some, sums_of(saved.log_sums, some, first), tokens_of(grad_qkv_NC, some, first));
  });
  return grad_qkv_NC;
}

}  // namespace fsdp
