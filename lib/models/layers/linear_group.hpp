#pragma once
// Matrices of a block that read the same input, with their biases and low-rank adapters: the only place where a block
// multiplies by its weights. Matrices adjacent in memory (lib/engine/sharding/shard_layout.hpp) form one product.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/compute/ops/products/fp8.hpp"
#include "lib/compute/tensor/layer.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/models/layers/parameter_finder.hpp"

namespace fsdp {

class Ops;

namespace detail {

/// Saved by a group for its backward pass: activations of adapters, and tensors in fp8.
struct LinearState {
  at::Tensor down_NR;               ///< x (s A)^T of the group's adapters, concatenated, in the dtype of x
  at::Tensor grad_down_NR;          ///< gradient of down_NR, from backward_input() on
  std::vector<at::Tensor> norms_O;  ///< DoRA: row norms of W + s B A, for each matrix
  at::Tensor x_largest;             ///< Ops::fp8_largest() of x; undefined without fp8 matrices
  std::vector<Fp8Matrix> grads8;    ///< output gradients, from backward_input() on; empty without fp8 matrices
};

/// Shapes: N tokens, I inputs, O outputs of one matrix, R the ranks of the adapters together.
///
/// Adapters are multiplied in the dtype of the activations, as peft does under autocast: their float32 parameters are
/// rounded for each product, sums are float32, and gradients of parameters are not rounded.
class LinearGroup {
 public:
  /// \param dropout_place  identifies the adapters' dropout in the model
  LinearGroup(const Ops& ops, const DecoderOptions& options, std::vector<Linear> matrices, std::uint64_t dropout_place);

  /// Allocates outputs, adjacent if one product can compute all of them.
  std::vector<at::Tensor> make_outputs(LayerParams p, const at::Tensor& x_NI) const;
  /// outs[i] = x W_i^T plus the adapter's output and the bias.
  /// \param keep  receives the state for the backward pass; null if there is none
  /// \param biases_O  one for each matrix, or none
  void forward(LayerParams p, const MicroBatch& batch, const at::Tensor& x_NI, std::span<at::Tensor> outs_NO,
               LinearState* keep, std::span<const at::Tensor> biases_O = {}) const;
  /// Like forward(), for a group of one matrix; allocates and returns the output. \param bias_O  may be undefined
  at::Tensor project(LayerParams p, const MicroBatch& batch, const at::Tensor& x_NI, LinearState* keep,
                     const at::Tensor& bias_O = {}) const;
  /// Returns the biases of the matrices, for forward(); none if the matrices have none.
  std::vector<at::Tensor> biases(LayerParams p) const;
  /// True if products in 16 bits add the bias before they are rounded, as PyTorch's do. A bias smaller than half a step
  /// of the rounded product would otherwise be lost; in float32 a later pass may add the bias as well.
  bool adds_bias_in_product(LayerParams p, at::ScalarType activations) const;
  /// Returns the gradient of x, without needing x; also computes the gradients of the adapters' B.
  at::Tensor backward_input(LayerParams p, LayerGrads g, const MicroBatch& batch, std::span<const at::Tensor> grads_NO,
                            LinearState& state) const;
  /// Computes the gradients of weights, biases, A and magnitudes.
  void backward_weights(LayerParams p, LayerGrads g, const MicroBatch& batch, std::span<const at::Tensor> grads_NO,
                        const at::Tensor& x_NI, LinearState& state) const;
  /// True if backward_weights() needs x.
  bool needs_input(LayerGrads g) const;

 private:
  /// Returns the weights as one matrix if they are adjacent and multiplied without conversion; otherwise undefined.
  at::Tensor joined_weight(LayerParams p, at::ScalarType activations) const;
  /// Computes the weight gradients by one product. \return false if they are not adjacent; then nothing was computed
  bool joined_weight_grad(LayerGrads g, std::span<const at::Tensor> grads_NO, const at::Tensor& x_NI) const;
  /// Returns the weight for the product: the parameter itself, or dequantized for as long as the caller holds it.
  at::Tensor weight(LayerParams p, const Linear& matrix, at::ScalarType activations) const;
  bool is_fp8(const Linear& matrix) const;
  /// out = x W^T + bias, computed in W's dtype. \param x8  x in fp8, filled by the first use \param bias_O  may be
  /// undefined; asks for adds_bias_in_product()
  void multiply_one(const Linear& matrix, const at::Tensor& out_NO, const at::Tensor& x_NI, const at::Tensor& weight_OI,
                    Fp8Matrix& x8, const at::Tensor& bias_O) const;
  /// forward() with biases in the products. \param biases_O  may be empty; ask for adds_bias_in_product()
  void multiply(LayerParams p, const MicroBatch& batch, const at::Tensor& x_NI, std::span<at::Tensor> outs_NO,
                LinearState* keep, std::span<const at::Tensor> biases_O) const;
  bool has_adapters() const { return !adapted_.empty(); }
  at::Tensor adapter_input(const MicroBatch& batch, const at::Tensor& x_NI) const;
  at::Tensor dropout_keys(const MicroBatch& batch) const;
  /// Returns the columns of the n-th adapter.
  at::Tensor part(const at::Tensor& down_NR, std::size_t n) const;
  const LoraModule& adapter(std::size_t n) const { return matrices_[adapted_[n]].adapter; }
  /// Multiplies the rows of each adapter by its scale.
  void scale_rows(at::Tensor& all_RI) const;
  /// Returns s A of all adapters, one below the other.
  at::Tensor scaled_a(LayerParams p, at::ScalarType dtype) const;
  /// Ops::weight_grad() with sums that are not rounded to the factors' dtype.
  void adapter_grad(GradSlot* slot, const at::Tensor& grad_NO, const at::Tensor& x_NI) const;
  /// out += down B^T, for the n-th adapter.
  void add_adapter(LayerParams p, std::size_t n, at::Tensor& out_NO, const at::Tensor& down_NR) const;
  /// Adds the adapter's bias of a matrix, times its scale.
  void add_lora_bias(LayerParams p, const Linear& matrix, at::Tensor& out_NO) const;
  /// DoRA, for the n-th adapter: returns the gradient of the product that m / |V| scales.
  at::Tensor unscaled(LayerParams p, std::size_t n, const at::Tensor& grad_NO, const LinearState& state) const;
  void magnitude_grad(LayerParams p, LayerGrads g, std::size_t n, const at::Tensor& grad_NO, const at::Tensor& x_NI,
                      const LinearState& state) const;

  const Ops& ops_;
  double dropout_;                               ///< of the adapters' input
  std::optional<at::ScalarType> compute_dtype_;  ///< for products with quantized matrices
  bool fp8_;                                     ///< fp8 products for matrices whose sizes allow them
  std::vector<Linear> matrices_;
  std::vector<std::size_t> adapted_;        ///< matrices with adapters
  std::vector<std::int64_t> first_column_;  ///< of each adapter in down_NR
  bool one_scale_ = true;                   ///< all adapters have that of the first one
  std::uint64_t dropout_place_;
};

}  // namespace detail
}  // namespace fsdp
