#pragma once
// Adapters of embeddings and of the head: low-rank ones, and rows that are trained in place of the base's.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/compute/tensor/layer.hpp"
#include "lib/models/layers/decoder.hpp"

namespace fsdp {

class Ops;

namespace detail {

/// Rows that stand in place of those of some tokens (or positions), as peft's TrainableTokens keeps them.
struct TokenRows {
  int parameter = -1;             ///< of the decoder; -1: there are none
  std::vector<std::int64_t> ids;  ///< the tokens, in the order of the rows
};

/// Shapes: N tokens, D embedding size, V rows of the table, R rank, T trained rows. A layer passes its parameters from
/// parameters() on, in this order.
class EmbeddingAdapter {
 public:
  /// \param module  such as model.embed_tokens, or transformer.wpe, whose ids are positions
  EmbeddingAdapter(const Ops& ops, const Decoder& decoder, const std::string& module);

  /// Indices of the decoder's parameters; empty: the embedding has no adapter.
  const std::vector<int>& parameters() const { return parameters_; }
  /// Changes the looked-up rows. \param ids_N  which rows were looked up, int32
  void forward(LayerParams p, const MicroBatch& batch, const at::Tensor& ids_N, at::Tensor& x_ND) const;
  void backward(LayerParams p, LayerGrads g, const MicroBatch& batch, const at::Tensor& ids_N,
                const at::Tensor& grad_ND) const;

 private:
  /// \return for each token the number of its trained row; T: it has none. int32 [N]
  at::Tensor row_numbers(const at::Tensor& ids_N) const;

  const Ops& ops_;
  TokenRows rows_;
  std::int64_t table_rows_;
  double scale_ = 0;
  int a_ = -1, b_ = -1, delta_ = -1;  ///< places in parameters()
  std::vector<int> parameters_;
  at::Tensor numbers_V_;  ///< of all ids: on the device from the start, as a graph's capture copies nothing there
};

/// Shapes as above; logits may have more columns than the vocabulary, which are padding.
class HeadAdapter {
 public:
  HeadAdapter(const Ops& ops, const Decoder& decoder);

  const std::vector<int>& parameters() const { return parameters_; }
  /// Changes the logits of tokens [first, first + N) among those of the head.
  void forward(LayerParams p, const MicroBatch& batch, std::int64_t first, const at::Tensor& x_ND,
               at::Tensor& logits_NV) const;
  /// Takes the gradient of the logits, of which it zeroes columns that the head's own weight has no part in.
  /// \param grad_x_ND  the adapter's part is returned; undefined: it has none
  at::Tensor backward(LayerParams p, LayerGrads g, const MicroBatch& batch, std::int64_t first, const at::Tensor& x_ND,
                      at::Tensor& grad_NV) const;

 private:
  at::Tensor dropout_keys(const MicroBatch& batch, std::int64_t first, std::int64_t rows) const;
  at::Tensor down(LayerParams p, const MicroBatch& batch, std::int64_t first, const at::Tensor& x_ND,
                  at::Tensor* input_ND) const;
  /// \return the rows' tokens for each row of `like`, int64 [N, T]
  at::Tensor columns(const at::Tensor& like) const;

  const Ops& ops_;
  TokenRows rows_;
  std::int64_t vocabulary_;
  double scale_ = 0, dropout_;
  std::uint64_t dropout_place_;
  int a_ = -1, b_ = -1, delta_ = -1;  ///< places in parameters()
  std::vector<int> parameters_;
  at::Tensor columns_T_;  ///< the rows' tokens, int64, on the device from the start
};

}  // namespace detail
}  // namespace fsdp
