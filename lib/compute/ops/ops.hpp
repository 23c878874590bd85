#pragma once
// Everything that is computed on tensors, forward and backward written out: the one seam between what a model, the
// engine and the optimizer ask for and the device that does it.
// An Ops is chosen once, when a runtime is made; layers, engine, optimizer and collectives hold it, and none of them
// asks what the device is. CpuOps are the kernels of lib/compute/kernels; AtenOps plain operators, the reference in
// tests and what a device without kernels runs; CudaOps (lib/compute/cuda) and those of lib/compute/meta, which
// allocate what the real ones allocate and compute nothing, build on these two. Gradients of parameters are *added*
// into the caller's buffers. Functions are const, without state; names of shapes as in op_types.hpp; products in 8 bits
// in fp8.hpp.
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/compute/ops/fp8.hpp"
#include "lib/compute/ops/op_types.hpp"
#include "lib/compute/ops/optimizer_updates.hpp"
#include "lib/compute/ops/place.hpp"
#include "lib/compute/tensor/layer.hpp"

namespace fsdp {

class Ops : public Place, public Fp8Products {
 public:
  // --- products with weights, and nowhere else (ops_products.cpp)
  /// How factors of this type are multiplied, for people: "bf16 through float32 by aten". Last bits depend on it.
  virtual std::string product_way(at::ScalarType dtype) const;
  /// One product of several matrices beats several: the engine lays those that read the same input side by side.
  virtual bool joins_products() const { return false; }
  /// x W^T as a new tensor.
  at::Tensor linear(const at::Tensor& x_NI, const at::Tensor& weight_OI) const;
  /// out = x W^T; out may be columns of a larger matrix.
  void linear_into(at::Tensor& out_NO, const at::Tensor& x_NI, const at::Tensor& weight_OI) const;
  /// Gradient of the input: grad W.
  at::Tensor linear_backward(const at::Tensor& grad_NO, const at::Tensor& weight_OI) const;
  void linear_backward_into(at::Tensor& out_NI, const at::Tensor& grad_NO, const at::Tensor& weight_OI) const;
  /// out += grad W
  void linear_backward_add(at::Tensor& out_NI, const at::Tensor& grad_NO, const at::Tensor& weight_OI) const;
  /// Gradient of the weight: slot (+)= grad^T x. \param slot  null: nobody wants it, nothing is computed
  void weight_grad(GradSlot* slot, const at::Tensor& grad_NO, const at::Tensor& x_NI) const;

  /// A matrix of 4 bits as what products take, [rows, columns], each element rounded once into `dtype`.
  at::Tensor dequantize(const Nf4Matrix& matrix, at::ScalarType dtype) const;
  // --- low-rank adapters: float32, whatever the type of activations (ops_products.cpp)
  /// scale x M, float32. M has few columns.
  at::Tensor lora_down(const at::Tensor& x_NI, const at::Tensor& m_IR, double scale) const;
  /// out += h M, rounded once; out may be columns of a larger matrix.
  void lora_up(at::Tensor& out_NO, const at::Tensor& h_NR, const at::Tensor& m_RO) const;
  /// Lengths of the rows of W + scale B A, float32.
  at::Tensor lora_row_norms(const at::Tensor& weight_OI, const at::Tensor& b_OR, const at::Tensor& a_RI,
                            double scale) const;

  // --- gradients of parameters
  /// slot (+)= values, float32, as many elements. \param slot  may be null
  void accumulate(GradSlot* slot, const at::Tensor& values) const;
  /// Makes the slot readable: zeros where nobody wrote.
  static void finish(GradSlot& slot);
  /// Global sum in float64, in an order that depends on sizes alone. Waits for the device.
  virtual double sum_squares(std::span<const GradPart> parts) const = 0;
  /// Adds to counts[d], 2^bits of them, for each element whose bits above range are `prefix` and in it d. Waits.
  virtual void count_bits(const GradPart& part, BitRange range, std::span<double> counts) const;
  /// Null: steps are decided on the host.
  virtual const StepDecider* step_decider() const { return nullptr; }
  /// Each `to` becomes its `from`, rounded into its type. They may lie in different places.
  virtual void publish(std::span<const PublishedRows> rows) const;
  virtual void widen(std::span<const WidenedRows> rows) const;
  /// out[0, n) (+)= the sum of the sources, in order; out float32, sources of `dtype`, all in the host's memory.
  virtual void sum_sources(const at::Tensor& out, std::int64_t n, std::span<const void* const> sources,
                           at::ScalarType dtype, bool accumulate) const = 0;

  // --- optimizers
  virtual void adamw(const AdamWUpdate& update) const;
  virtual void sgd(const SgdUpdate& update) const;
  virtual void lion(const LionUpdate& update) const;
  virtual void any_precision(const AnyPrecisionUpdate& update) const;
  virtual void blockwise(const BlockwiseUpdate& update) const;
  /// The largest new moments of this rank's part of its first and last block. \param largest  float64 [2, 2], written
  virtual void blockwise_edges(const BlockwiseUpdate& update, const at::Tensor& largest) const;
  /// Adafactor, first: row_var or variance take this step's squares; `sums` is filled with this rank's.
  virtual void adafactor_statistics(const AdafactorUpdate& update) const;
  /// Then, with the sums of all ranks: col_var takes them; `update_sum` is filled with this rank's.
  virtual void adafactor_update_size(const AdafactorUpdate& update) const;
  /// At last, with that of all ranks: param and exp_avg.
  virtual void adafactor_apply(const AdafactorUpdate& update) const;
  /// Muon, first: momentum_buffer takes the gradient. \param direction  bf16, of the param's shape, written
  void muon_direction(const MuonUpdate& update, const at::Tensor& direction) const;
  /// Then, of a whole matrix of directions, bf16: one with the same singular vectors and values near 1.
  at::Tensor orthogonalize(const at::Tensor& matrix) const;
  /// At last: param. \param orthogonal  this rank's rows
  void muon_apply(const MuonUpdate& update, const at::Tensor& orthogonal) const;

  // --- embedding
  /// token[ids] + position[place of t].  ids_N int32; position_PD undefined: token[ids].
  virtual at::Tensor embed(const at::Tensor& token_VD, const at::Tensor& position_PD, const at::Tensor& ids_N,
                           RopePlace place) const = 0;
  /// Adds grad_ND into the rows of token and position gradients (one dtype, any), either of which may be null.
  virtual void embed_backward(at::Tensor* grad_token_VD, at::Tensor* grad_position_PD, const at::Tensor& grad_ND,
                              const at::Tensor& ids_N, const RopePlace& place) const = 0;

  // --- norms of x (+ y + y_bias where they are defined)
  virtual NormResult add_layer_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                                    const at::Tensor& gamma_D, const at::Tensor& beta_D, double eps) const = 0;
  /// Computed in float32 and rounded once.
  virtual NormResult add_rms_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                                  const at::Tensor& gamma_D, const RmsNorm& kind) const = 0;
  /// Gradient of the norm's input, plus the residual's. \param again  may be null
  virtual at::Tensor layer_norm_backward(const NormBackward& norm, const NormGrads& grads,
                                         const NormAgain* again = nullptr) const = 0;
  virtual at::Tensor rms_norm_backward(const NormBackward& norm, const NormGrads& grads,
                                       const NormAgain* again = nullptr) const = 0;

  // --- between products
  /// pre_NF += bias in place; returns gelu_tanh(pre).
  virtual at::Tensor bias_gelu(at::Tensor& pre_NF, const at::Tensor& bias_F) const = 0;
  /// grad_NF becomes the gradient of pre_NF in place; its column sums are the bias's.
  /// \param again_NF  when not null, receives gelu(pre) once more: it need not be kept since the forward
  virtual void bias_gelu_backward(at::Tensor& grad_NF, const at::Tensor& pre_NF, GradSlot* grad_bias_F,
                                  at::Tensor* again_NF = nullptr) const = 0;
  /// act(gate) * up: rows of both lie equally far apart, whatever lies between them
  virtual at::Tensor gated(GateActivation gate, const at::Tensor& gate_NF, const at::Tensor& up_NF) const = 0;
  /// In place: gate and up become their gradients, the output's gradient becomes the output once more.
  virtual void gated_backward(GateActivation gate, at::Tensor& grad_NF, at::Tensor& gate_NF,
                              at::Tensor& up_NF) const = 0;
  /// x += bias (+ y when defined), in place.
  virtual void add_bias(at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& bias_D) const = 0;
  /// Gradient of a bias: slot (+)= column sums. \param slot  may be null
  virtual void bias_grad(GradSlot* slot, const at::Tensor& grad_ND) const = 0;
  /// Keys for dropout() of rows_per_sample rows of each sample, `step` apart: int64, where they are used.
  virtual at::Tensor dropout_keys(const DropoutPlace& place, std::int64_t rows_per_sample, std::uint64_t step) const;
  /// Zeroes elements with `probability`, scales the rest, in place, by each row's key alone; its own backward.
  virtual void dropout(at::Tensor& x_ND, const at::Tensor& keys_N, double probability) const = 0;

  // --- attention
  /// For positions [0, positions), from radians per position.
  RopeTable rope_table(std::span<const float> frequencies, std::int64_t positions) const;
  /// Rotates the first heads * head_size columns of x_NC in place. \param inverse  back: the backward
  virtual void rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table,
                    const RopePlace& place, bool inverse) const = 0;
  /// Causal self-attention, of rows or of the documents that share them; padding between these gives zeros.
  /// \param qkv_NC  rows of [q | k | v]: [H, head_size], then twice [kv_heads, head_size]; the caller keeps it
  /// \param state   receives what the backward needs; null when there will be none
  at::Tensor attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                       std::unique_ptr<AttentionState>* state) const;
  /// \return gradient of qkv_NC
  at::Tensor attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                const AttentionShape& shape, std::unique_ptr<AttentionState> state) const;
  /// Likewise, of qkv_NC before its queries and keys were turned.
  virtual at::Tensor rotary_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                               const at::Tensor& out_ND, const AttentionShape& shape,
                                               std::unique_ptr<AttentionState> state, const Rotation& rotation) const;

  // --- loss
  /// Adds the cross-entropy of logits_NV (first `vocab` of V columns are real) against targets_N (int32, negative:
  /// ignored) to `sum`. With grad_scale != 0, logits become the gradient of grad_scale * loss in place.
  virtual void cross_entropy(LossSum& sum, at::Tensor& logits_NV, const at::Tensor& targets_N, std::int64_t vocab,
                             const GradScale& grad_scale) const = 0;
  /// Brings what is pending to the host. Waits for the device: synchronize() its back end first.
  void fetch(LossSum& sum) const;

 protected:
  /// Of rows: shape.packing is null.
  virtual at::Tensor row_attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                                   std::unique_ptr<AttentionState>* state) const = 0;
  virtual at::Tensor row_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                            const at::Tensor& out_ND, const AttentionShape& shape,
                                            std::unique_ptr<AttentionState> state) const = 0;
  /// Of documents that share rows: here one after the other, as rows, so that what is not seen costs nothing.
  virtual at::Tensor packed_attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                                      std::unique_ptr<AttentionState>* state) const;
  virtual at::Tensor packed_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                               const at::Tensor& out_ND, const AttentionShape& shape,
                                               std::unique_ptr<AttentionState> state) const;
  /// Of one of them: a row by itself.
  AttentionShape shape_of(const AttentionShape& shape, const Packing::Document& document) const;
  virtual void dequantize_into(at::Tensor& out_OI, const Nf4Matrix& matrix) const;
  /// What sums by column begin with: float32 zeros.
  static at::Tensor zero_sums(const at::Tensor& x_ND);
  /// out (+)= a @ b, 2-D or (not added) 3-D; any strides.
  void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const override = 0;
  /// The same of factors of 16 bits into float32, not rounded in between. \return false: there is no such product here
  virtual bool wide_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const;
  /// beta x + alpha a @ b as a new tensor, 2-D, rounded once.
  virtual at::Tensor blended_product(const at::Tensor& x, double beta, const at::Tensor& a, const at::Tensor& b,
                                     double alpha) const;
  /// to += from, elements of another dtype.
  virtual void add_converted(at::Tensor& to, const at::Tensor& from) const = 0;
  /// float64 values, brought to the host.
  virtual std::vector<double> read(const at::Tensor& values) const;
  /// Every loop over memory of the host, in pieces of at least `grain` on ATen's threads.
  virtual void launch(std::int64_t n, std::int64_t grain,
                      const std::function<void(std::int64_t begin, std::int64_t end)>& body) const;
};

/// The CPU's, for what runs on the host whatever the device.
const Ops& host_ops();

}  // namespace fsdp
