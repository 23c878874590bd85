#include "lib/models/layers/token_adapters.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "lib/base/types/hash_functions.hpp"
#include "lib/base/types/index.hpp"
#include "lib/compute/ops/ops.hpp"

namespace fsdp::detail {
namespace {

const at::Tensor& of(LayerParams p, int place) { return element(p, place); }
GradSlot* of(LayerGrads g, int place) { return element(g, place); }

int index_of(const Decoder& decoder, const std::string& name) {
  const auto found = std::find_if(decoder.parameters.begin(), decoder.parameters.end(),
                                  [&](const auto& spec) { return spec.name == name; });
  return found == decoder.parameters.end() ? -1 : static_cast<int>(found - decoder.parameters.begin());
}

TokenRows rows_of(const Decoder& decoder, const std::string& module) {
  const auto rows = trained_rows(decoder.config, decoder.options.lora);
  const auto found = rows.find(module);
  if (found == rows.end()) return {};
  return {index_of(decoder, module + kTokenRows), found->second};
}

std::int64_t rows_of_table(const Decoder& decoder, const std::string& module) {
  return element(decoder.parameters, parameter_index(decoder, module + ".weight")).shape[0];
}

/// \return for each id of the table the number of its row; rows.ids.size(): it has none. int32 [V] on the device,
/// undefined without rows
at::Tensor rows_of_tokens(const Ops& ops, const TokenRows& rows, std::int64_t table_rows) {
  if (rows.ids.empty()) return {};
  auto numbers = at::full({table_rows}, std::ssize(rows.ids), at::kInt);
  for (std::size_t i = 0; i < rows.ids.size(); ++i)
    numbers.data_ptr<std::int32_t>()[rows.ids[i]] = static_cast<std::int32_t>(i);
  return numbers.to(ops.device());
}

/// \return the rows' tokens, int64 [T] on the device; undefined without rows
at::Tensor tokens_of_rows(const Ops& ops, const TokenRows& rows) {
  if (rows.ids.empty()) return {};
  auto ids = at::empty({std::ssize(rows.ids)}, at::kLong);
  std::copy(rows.ids.begin(), rows.ids.end(), ids.data_ptr<std::int64_t>());
  return ids.to(ops.device());
}

/// Adds a parameter to a layer's, unless it is -1. \return its place there, else -1
int add_to(std::vector<int>& parameters, int parameter) {
  if (parameter < 0) return -1;
  parameters.push_back(parameter);
  return static_cast<int>(parameters.size()) - 1;
}

double scale_of(const Decoder& decoder, const std::string& module) {
  const auto found = decoder.adapters.find(module);
  return found == decoder.adapters.end() ? 0 : found->second.scale;
}

}  // namespace

EmbeddingAdapter::EmbeddingAdapter(const Ops& ops, const Decoder& decoder, const std::string& module)
    : ops_(ops),
      rows_(rows_of(decoder, module)),
      table_rows_(rows_of_table(decoder, module)),
      scale_(scale_of(decoder, module)),
      numbers_V_(rows_of_tokens(ops, rows_, table_rows_)) {
  delta_ = add_to(parameters_, rows_.parameter);
  a_ = add_to(parameters_, index_of(decoder, module + kEmbeddingA));
  b_ = add_to(parameters_, index_of(decoder, module + kEmbeddingB));
}

at::Tensor EmbeddingAdapter::row_numbers(const at::Tensor& ids_N) const {
  return numbers_V_.gather(0, ids_N.to(at::kLong));
}

void EmbeddingAdapter::forward(LayerParams p, const MicroBatch& batch, const at::Tensor& ids_N,
                               at::Tensor& x_ND) const {
  if (delta_ >= 0) {
    const auto numbers_N = row_numbers(ids_N);
    const auto count = of(p, delta_).size(0);
    const auto rows_ND = ops_.embed(of(p, delta_), {}, numbers_N.clamp_max(count - 1), token_positions(batch));
    const auto is_trained_N1 = numbers_N.lt(count).unsqueeze(1).to(x_ND.scalar_type());
    x_ND.mul_(1 - is_trained_N1).add_(rows_ND.to(x_ND.scalar_type()).mul_(is_trained_N1));
  }
  if (a_ < 0) return;
  const auto down_NR = ops_.embed(of(p, a_).t().contiguous(), {}, ids_N, token_positions(batch)).mul_(scale_);
  ops_.lora_up(x_ND, down_NR, of(p, b_).t());
}

void EmbeddingAdapter::backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& ids_N,
                                const at::Tensor& grad_ND) const {
  const auto wide_ND = grad_ND.to(at::kFloat);
  const auto sum_rows = [&](std::int64_t rows, const at::Tensor& grad, const at::Tensor& numbers_N) {
    auto sums = at::zeros({rows, grad.size(1)}, grad.options());
    ops_.embed_backward(&sums, nullptr, grad, numbers_N, token_positions(batch));
    return sums;
  };
  if (delta_ >= 0 && of(g, delta_) != nullptr) {
    const auto count = of(p, delta_).size(0);
    const auto sums = sum_rows(count + 1, wide_ND, row_numbers(ids_N));
    ops_.accumulate(of(g, delta_), sums.narrow(0, 0, count).contiguous());
  }
  if (a_ < 0) return;
  const auto down_NR = ops_.embed(of(p, a_).t().contiguous(), {}, ids_N, token_positions(batch)).mul_(scale_);
  ops_.weight_grad(of(g, b_), wide_ND, down_NR);
  if (of(g, a_) == nullptr) return;
  const auto grads_VR = sum_rows(table_rows_, ops_.lora_down(wide_ND, of(p, b_), scale_), ids_N);
  ops_.accumulate(of(g, a_), grads_VR.t().contiguous());
}

HeadAdapter::HeadAdapter(const Ops& ops, const Decoder& decoder)
    : ops_(ops),
      rows_(rows_of(decoder, "lm_head")),
      vocabulary_(decoder.config.vocab_size),
      scale_(scale_of(decoder, "lm_head")),
      dropout_(decoder.options.lora.dropout),
      // After the numbers of the blocks' own dropout and of their adapters'.
      dropout_place_(static_cast<std::uint64_t>(2 * decoder.config.num_layers + 2) * 4) {
  for (const auto& [head, embedding] : tied_names(decoder.config)) {
    if (rows_.parameter < 0) rows_ = rows_of(decoder, embedding.substr(0, embedding.rfind('.')));
  }
  columns_T_ = tokens_of_rows(ops, rows_);
  delta_ = add_to(parameters_, rows_.parameter);
  a_ = add_to(parameters_, index_of(decoder, "lm_head.lora_A.weight"));
  b_ = add_to(parameters_, index_of(decoder, "lm_head.lora_B.weight"));
}

at::Tensor HeadAdapter::columns(const at::Tensor& like) const {
  return columns_T_.unsqueeze(0).expand({like.size(0), columns_T_.size(0)});
}

at::Tensor HeadAdapter::dropout_keys(const MicroBatch& batch, std::int64_t first, std::int64_t rows) const {
  if (dropout_ == 0 || !batch.sample_keys.defined()) return {};
  const auto keys =
      ops_.dropout_keys({batch.sample_keys, dropout_place_ * kDropoutIndexSpread}, batch.length, kSplitmix64Step);
  if (!batch.head_tokens_M.defined()) return keys.narrow(0, first, rows);
  // Plain operators have keys on the host.
  return keys.index_select(0, batch.head_tokens_M.narrow(0, first, rows).to(keys.device()));
}

/// \param input_ND  receives x as the adapter reads it, float32; null: not wanted
at::Tensor HeadAdapter::down(LayerParams p, const MicroBatch& batch, std::int64_t first, const at::Tensor& x_ND,
                             at::Tensor* input_ND) const {
  const auto keys = dropout_keys(batch, first, x_ND.size(0));
  auto wide_ND = x_ND.to(at::kFloat, /*non_blocking=*/false, /*copy=*/keys.defined());
  if (keys.defined()) ops_.dropout(wide_ND, keys, dropout_);
  if (input_ND != nullptr) *input_ND = wide_ND;
  return ops_.lora_down(wide_ND, of(p, a_).t(), scale_);
}

void HeadAdapter::forward(LayerParams p, const MicroBatch& batch, std::int64_t first, const at::Tensor& x_ND,
                          at::Tensor& logits_NV) const {
  if (delta_ >= 0) logits_NV.scatter_(1, columns(logits_NV), ops_.linear(x_ND, of(p, delta_).to(x_ND.scalar_type())));
  if (a_ < 0) return;
  auto real_NV = logits_NV.narrow(1, 0, vocabulary_);
  ops_.lora_up(real_NV, down(p, batch, first, x_ND, nullptr), of(p, b_).t());
}

at::Tensor HeadAdapter::backward(LayerParams p, LayerGrads g, const MicroBatch& batch, std::int64_t first,
                                 const at::Tensor& x_ND, at::Tensor& grad_NV) const {
  at::Tensor grad_x_ND;
  // The low-rank part first: it belongs to every column.
  if (a_ >= 0) {
    at::Tensor input_ND;
    const auto down_NR = down(p, batch, first, x_ND, &input_ND);
    const auto wide_NV = grad_NV.narrow(1, 0, vocabulary_).to(at::kFloat).contiguous();
    ops_.weight_grad(of(g, b_), wide_NV, down_NR);
    const auto grad_down_NR = ops_.lora_down(wide_NV, of(p, b_), scale_);
    ops_.weight_grad(of(g, a_), grad_down_NR, input_ND);
    grad_x_ND = ops_.lora_down(grad_down_NR, of(p, a_), 1.0);
    if (const auto keys = dropout_keys(batch, first, x_ND.size(0)); keys.defined())
      ops_.dropout(grad_x_ND, keys, dropout_);
  }
  if (delta_ < 0) return grad_x_ND;
  const auto grad_NT = grad_NV.gather(1, columns(grad_NV)).to(at::kFloat);
  grad_NV.scatter_(1, columns(grad_NV), 0.0);
  ops_.weight_grad(of(g, delta_), grad_NT, x_ND.to(at::kFloat));
  const auto through_rows_ND = ops_.lora_down(grad_NT, of(p, delta_), 1.0);
  return grad_x_ND.defined() ? grad_x_ND.add_(through_rows_ND) : through_rows_ND;
}

}  // namespace fsdp::detail
