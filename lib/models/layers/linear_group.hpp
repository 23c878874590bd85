#pragma once
// Matrices of a block that read the same input, with their biases and low-rank adapters: the one place where a block
// multiplies with its weights. Those that lie side by side (lib/engine/fsdp/shard_layout.hpp) are one product.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/compute/ops/fp8.hpp"
#include "lib/compute/tensor/layer.hpp"
#include "lib/models/layers/decoder.hpp"

namespace fsdp {

class Ops;

namespace detail {

/// A matrix and where its parts stand among the block's parameters; -1: it has none.
struct Linear {
  std::size_t weight = 0;
  int bias = -1;
  int absmax = -1, nested_absmax = -1, nested_offset = -1;  ///< weight is codes, these their scales
  int lora_a = -1, lora_b = -1, magnitude = -1;
  std::int64_t rows = 0, columns = 0;  ///< of the matrix
};

/// Saved by a group for its backward: activations of adapters, and tensors in fp8.
struct LinearState {
  at::Tensor down_NR;               ///< s x A^T of the group's adapters side by side, float32
  at::Tensor grad_down_NR;          ///< its gradient times s, from backward_input() on
  std::vector<at::Tensor> norms_O;  ///< DoRA: lengths of the rows of W + s B A, of each matrix
  std::vector<Fp8Matrix> grads8;    ///< of outputs, from backward_input() on; empty: none is in 8 bits
};

/// Shapes: N tokens, I inputs, O outputs of one matrix, R the rank times the number of adapters.
class LinearGroup {
 public:
  /// \param dropout_place  a number of its own in the model, for the adapters' dropout
  LinearGroup(const Ops& ops, const DecoderOptions& options, std::vector<Linear> matrices, std::uint64_t dropout_place);

  /// Room for outs, side by side where one product can fill them.
  std::vector<at::Tensor> make_outputs(LayerParams p, const at::Tensor& x_NI) const;
  /// outs[i] = x W_i^T and what its adapter adds; without the bias.
  /// \param keep  receives what the backward needs; null when there will be none
  void forward(LayerParams p, const MicroBatch& batch, const at::Tensor& x_NI, std::span<at::Tensor> outs_NO,
               LinearState* keep) const;
  /// As forward(), for a group of one matrix; allocates and returns the output.
  at::Tensor project(LayerParams p, const MicroBatch& batch, const at::Tensor& x_NI, LinearState* keep) const;
  /// Gradient of x, which does not need x; also computes the gradients of the adapters' B.
  at::Tensor backward_input(LayerParams p, LayerGrads g, const MicroBatch& batch, std::span<const at::Tensor> grads_NO,
                            LinearState& state) const;
  /// Gradients of weights, biases, A and magnitudes.
  void backward_weights(LayerParams p, LayerGrads g, const MicroBatch& batch, std::span<const at::Tensor> grads_NO,
                        const at::Tensor& x_NI, LinearState& state) const;
  /// Whether backward_weights() needs x.
  bool needs_input(LayerGrads g) const;

  const Linear& operator[](std::size_t i) const { return matrices_[i]; }

 private:
  /// The matrices as one, where they are multiplied as they are and lie side by side; undefined where not.
  at::Tensor joined_weight(LayerParams p, at::ScalarType activations) const;
  /// Their gradients by one product. \return false: they do not lie so, nothing was done
  bool joined_weight_grad(LayerGrads g, std::span<const at::Tensor> grads_NO, const at::Tensor& x_NI) const;
  /// The matrix as it is multiplied: itself, or made of its codes for as long as the caller holds it.
  at::Tensor weight(LayerParams p, const Linear& matrix, at::ScalarType activations) const;
  bool is_fp8(const Linear& matrix) const;
  /// out = x W^T. \param x8  x in 8 bits, from its first use on
  void multiply(const Linear& matrix, const at::Tensor& out_NO, const at::Tensor& x_NI, const at::Tensor& weight_OI,
                Fp8Matrix& x8) const;
  bool has_adapters() const { return !adapted_.empty(); }
  at::Tensor adapter_input(const MicroBatch& batch, const at::Tensor& x_NI) const;
  at::Tensor dropout_keys(const MicroBatch& batch) const;
  /// Columns of the n-th adapter.
  at::Tensor part(const at::Tensor& down_NR, std::size_t n) const;
  /// DoRA, of the n-th adapter: the gradient of what m / |V| is multiplied with.
  at::Tensor unscaled(LayerParams p, std::size_t n, const at::Tensor& grad_NO, const LinearState& state) const;
  void magnitude_grad(LayerParams p, LayerGrads g, std::size_t n, const at::Tensor& grad_NO, const at::Tensor& x_NI,
                      const LinearState& state) const;

  const Ops& ops_;
  LoraConfig lora_;
  std::optional<at::ScalarType> compute_dtype_;  ///< of products with quantized matrices
  bool fp8_;                                     ///< products are in 8 bits where sizes let them
  std::vector<Linear> matrices_;
  std::vector<std::size_t> adapted_;  ///< matrices with adapters
  std::uint64_t dropout_place_;
};

}  // namespace detail
}  // namespace fsdp
