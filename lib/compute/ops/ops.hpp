#pragma once
// Long because an operation is declared in one place. The interface between device-independent code (models, engine,
// optimizers) and devices: every operation on tensors, with its backward as a function of its own.
//
// A runtime creates one Ops; layers, engine, optimizer and collectives refer to it and never test the device type.
//
// An operation is declared here once and defined once, in the file of its family (products, norms, rows, tokens, codes,
// updates, attention): by the kernels of the CPU (lib/compute/kernels), by the fused kernels of a GPU
// (fused_kernels.hpp) or by ATen's operators, which are the reference in tests and serve tensors that no kernel
// supports. A prediction (lib/compute/meta) runs the same code on meta tensors: it counts the work that the operation
// states, allocates what the operation allocates, and launches nothing. Virtual is only what libraries or the memory of
// a device do differently. All functions are const. Gradients of parameters are accumulated into the caller's buffers
// (GradSlot). Shape suffixes: op_types.hpp; fp8 products: fp8.hpp.
#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/compute/ops/device_work.hpp"
#include "lib/compute/ops/op_types.hpp"
#include "lib/compute/ops/products/fp8.hpp"
#include "lib/compute/ops/updates/optimizer_updates.hpp"
#include "lib/compute/ops/work_counter.hpp"
#include "lib/compute/tensor/layer.hpp"

namespace fsdp {
namespace kernels {
struct Table;
}
namespace fused {
class Kernels;
}

class Ops {
 public:
  virtual ~Ops();

  // --- the device: where tensors live, how they are transferred, and how its work is captured and replayed
  virtual at::Device device() const = 0;
  /// True if tensors of the device are in host memory, which ranks of a node can share.
  virtual bool on_host() const = 0;
  /// Device of host tensors: at::kCPU, or at::kMeta in a prediction.
  virtual at::Device host() const;
  virtual bool is_on_host(const at::Tensor& x) const;
  /// x on the device; x itself if it is there already.
  virtual at::Tensor to_device(const at::Tensor& x) const;
  /// x on the host; x itself if it is there already. Waits until x is computed, but not for work that is queued later.
  /// \throws RuntimeFailure when x depends on a collective whose rank is gone
  virtual at::Tensor to_host(const at::Tensor& x) const;
  /// to = from: contiguous tensors of one dtype, one of them on the device. The host may reuse both on return.
  /// \throws RuntimeFailure as to_host()
  virtual void transfer(const at::Tensor& to, const at::Tensor& from) const;
  /// Starts the same copy on a stream of its own, for host memory that lock_pages() has locked. The copy starts after
  /// the work that is queued now; neither host nor device waits for it until Transfer::wait(), and neither tensor may
  /// be changed before. \return null if the copy is already done
  virtual std::unique_ptr<Transfer> start_transfer(const at::Tensor& to, const at::Tensor& from) const;
  /// Page-locks host tensor x, so that the device can access it, until the result is destroyed; null: not possible.
  virtual std::shared_ptr<void> lock_pages(const at::Tensor& x) const;
  /// A tensor over host memory that the caller owns.
  virtual at::Tensor tensor_at(void* data, at::IntArrayRef sizes, at::ScalarType dtype) const;
  /// Captures work for replay; null if the device cannot.
  virtual const WorkRecorder* recorder() const { return nullptr; }
  /// Marks the end of the work that is queued now; null if the device works whenever the host does.
  virtual std::unique_ptr<TimeMark> mark_time() const { return nullptr; }
  /// Counts host memory that ATen does not allocate (a shared-memory segment); negative when it is freed.
  virtual void count_shared_memory(std::int64_t bytes) const;
  /// Runs body(0), ..., body(n - 1). Each call frees what it allocates, so a prediction may skip calls that are alike.
  virtual void repeat(std::int64_t n, const std::function<void(std::int64_t)>& body) const;
  /// Runs body on ATen's threads over pieces of [0, n) of at least `grain`. All loops over host memory use this
  /// function, so that a prediction can skip them.
  virtual void launch(std::int64_t n, std::int64_t grain,
                      const std::function<void(std::int64_t begin, std::int64_t end)>& body) const;

  // --- products with weights: the only functions that multiply by a weight (ops_products.cpp)
  /// Describes how factors of this dtype are multiplied, for logs: "bf16 through float32 by aten". The last bits of
  /// results depend on it.
  virtual std::string gemm_description(at::ScalarType dtype) const;
  /// True if one product with several concatenated weights is faster than several products: the engine then stores
  /// weights with the same input next to each other.
  bool joins_products() const { return fused_ != nullptr; }
  /// \return x W^T
  at::Tensor linear(const at::Tensor& x_NI, const at::Tensor& weight_OI) const;
  /// out = x W^T; out may be a range of columns of a larger matrix.
  /// \param add  adds to what `out` holds, before the sum is rounded
  void linear_into(at::Tensor& out_NO, const at::Tensor& x_NI, const at::Tensor& weight_OI, bool add = false) const;
  /// out = x W^T + bias, rounded once.
  void linear_biased_into(at::Tensor& out_NO, const at::Tensor& x_NI, const at::Tensor& weight_OI,
                          const at::Tensor& bias_O) const;
  /// \return the gradient of the input: grad W
  at::Tensor linear_backward(const at::Tensor& grad_NO, const at::Tensor& weight_OI) const;
  void linear_backward_into(at::Tensor& out_NI, const at::Tensor& grad_NO, const at::Tensor& weight_OI) const;
  /// out += grad W
  void linear_backward_add(at::Tensor& out_NI, const at::Tensor& grad_NO, const at::Tensor& weight_OI) const;
  /// Gradient of the weight: slot (+)= grad^T x. \param slot  null: nothing is computed
  void weight_grad(GradSlot* slot, const at::Tensor& grad_NO, const at::Tensor& x_NI) const;

  // --- products in fp8 (fp8.cpp)
  /// Describes how fp8 factors are multiplied, for logs: "float8 emulated in float32".
  virtual std::string fp8_gemm_description() const;
  /// \return why this device has no fp8 products; empty if it has
  virtual std::string fp8_problem() const;
  /// Casts a matrix with the scale of its own largest value.
  /// \param x_RC  float32 or 16 bits, not empty, any row stride; C is a multiple of kFp8Multiple. If an element is not
  ///              finite, products that use it are not finite either
  Fp8Matrix to_fp8(const at::Tensor& x_RC, Fp8Format format, Fp8Sides sides) const;
  /// \return float32 [n] whose maximum is the largest absolute value of x; n depends on the number of rows alone
  at::Tensor fp8_largest(const at::Tensor& x_RC) const;
  /// Casts x with the scale for max(largest), the largest value of x or of the matrix that x is a part of.
  /// \param made  tensors to write to; undefined ones are allocated
  Fp8Matrix fp8_cast(const at::Tensor& x_RC, const at::Tensor& largest, Fp8Format format, Fp8Sides sides,
                     Fp8Matrix made = {}) const;
  /// \return the transpose of fp8 codes. \param rows_RC  contiguous, both sizes multiples of kFp8Multiple
  at::Tensor fp8_columns(const at::Tensor& rows_RC) const;
  /// out (+)= a b^T. The product is rounded to the dtype of `out` (float32 or 16 bits) before it is added.
  virtual void fp8_product(at::Tensor& out, Fp8Factor a, Fp8Factor b, Fp8Sums sums, bool add) const;

  /// \return the NF4 matrix as [rows, columns] of `dtype`, each element rounded once
  at::Tensor dequantize(const Nf4Matrix& matrix, at::ScalarType dtype) const;
  // --- low-rank adapters, computed in float32 for any dtype of activations (ops_products.cpp)
  /// \return scale x M, float32
  at::Tensor lora_down(const at::Tensor& x_NI, const at::Tensor& m_IR, double scale) const;
  /// out += h M, rounded once; out may be a range of columns of a larger matrix.
  void lora_up(at::Tensor& out_NO, const at::Tensor& h_NR, const at::Tensor& m_RO) const;
  /// \return Euclidean norms of the rows of W + scale B A, float32 [O] (DoRA)
  at::Tensor lora_row_norms(const at::Tensor& weight_OI, const at::Tensor& b_OR, const at::Tensor& a_RI,
                            double scale) const;

  // --- gradients of parameters
  /// slot (+)= values. \param values  as many elements as the slot. \param slot  may be null
  void accumulate(GradSlot* slot, const at::Tensor& values) const;
  /// Fills the slot with zeros if nothing was written to it.
  static void finish(GradSlot& slot);
  /// \return the sum of squares in float64, added in an order that depends on sizes alone. Waits for the device.
  double sum_squares(std::span<const GradPart> parts) const;
  /// Histogram: increments counts[d] (2^bits entries) for each element whose bits above `range` equal `prefix` and
  /// whose bits in `range` equal d. Waits for the device.
  void count_bits(const GradPart& part, BitRange range, std::span<double> counts) const;
  /// True if the device can decide how gradients are scaled and whether a step is skipped, so that the host need not
  /// wait: by the three functions below, which other devices do not have.
  bool decides() const { return fused_ != nullptr; }
  /// sum_squares() as float64 [1] on the device.
  at::Tensor device_sum_squares(std::span<const GradPart> parts) const;
  /// \return for UpdateGroup::decision
  at::Tensor decide(const StepToDecide& step) const;
  /// Starts to copy the decision to the host. \return a function that waits for the copy, but not for work that is
  /// queued later, and reads it
  std::function<StepOutcome()> outcome_of(const at::Tensor& decision) const;
  /// Casts master weights to the parameter dtype: to = from for each pair. Both may be on different devices.
  void cast_shards(std::span<const CastShard> rows) const;
  /// Upcasts received values to float32, see UpcastSum.
  void upcast_sums(std::span<const UpcastSum> rows) const;
  /// out[0, n) (+)= sum of the sources, added in order. \param out  float32. \param sources  n elements of `dtype`
  /// each, in host memory
  void sum_sources(const at::Tensor& out, std::int64_t n, std::span<const void* const> sources, at::ScalarType dtype,
                   bool accumulate) const;

  // --- optimizers
  void adamw(const AdamWUpdate& update) const;
  void update(const ElementwiseUpdate& update) const;
  void blockwise(const BlockwiseUpdate& update) const;
  /// Writes the largest absolute new moments of this rank's parts of its first and last block. \param largest  float64
  /// [2, 2]: [first or last block, first or second moment]
  void blockwise_edges(const BlockwiseUpdate& update, const at::Tensor& largest) const;
  /// Adafactor, step 1: updates row_var or variance with this step's squares, and writes this rank's `sums`.
  void adafactor_statistics(const AdafactorUpdate& update) const;
  /// Adafactor, step 2, with `sums` reduced over all ranks: updates col_var and writes this rank's `update_sum`.
  void adafactor_update_size(const AdafactorUpdate& update) const;
  /// Adafactor, step 3, with `update_sum` reduced over all ranks: updates param and exp_avg.
  void adafactor_apply(const AdafactorUpdate& update) const;
  /// Muon, step 1: updates momentum_buffer and writes this rank's rows of the direction. \param direction  bf16, shape
  /// of param
  void muon_direction(const MuonUpdate& update, const at::Tensor& direction) const;
  /// Muon, step 2: Newton-Schulz iteration on the whole matrix, bf16. \return a matrix with the same singular vectors
  /// and singular values near 1
  at::Tensor orthogonalize(const at::Tensor& matrix) const;
  /// Muon, step 3: updates param. \param orthogonal  this rank's rows of the result of orthogonalize()
  void muon_apply(const MuonUpdate& update, const at::Tensor& orthogonal) const;

  // --- embedding
  /// \return token[ids] + position[position of row t]. \param ids_N  int32. \param position_PD  may be undefined
  at::Tensor embed(const at::Tensor& token_VD, const at::Tensor& position_PD, const at::Tensor& ids_N,
                   const TokenPositions& place) const;
  /// Adds grad_ND to the rows of the token and position gradients, which have one dtype; either may be null.
  void embed_backward(at::Tensor* grad_token_VD, at::Tensor* grad_position_PD, const at::Tensor& grad_ND,
                      const at::Tensor& ids_N, const TokenPositions& place) const;

  // --- norms of x (+ y + y_bias where they are defined)
  NormResult add_layer_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                            const at::Tensor& gamma_D, const at::Tensor& beta_D, double eps) const;
  /// Computes in float32 and rounds once.
  NormResult add_rms_norm(const at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& y_bias_D,
                          const at::Tensor& gamma_D, const RmsNorm& kind) const;
  /// \return gradient of the norm's input plus norm.residual_ND. \param again  may be null
  at::Tensor layer_norm_backward(const NormBackward& norm, const NormGrads& grads,
                                 const NormAgain* again = nullptr) const;
  at::Tensor rms_norm_backward(const NormBackward& norm, const NormGrads& grads,
                               const NormAgain* again = nullptr) const;

  // --- between products
  /// Every row of out becomes the bias, to which a product is then added.
  void fill_rows(at::Tensor& out_NO, const at::Tensor& bias_O) const;
  /// GELU with the error function, and its gradient: Falcon's.
  at::Tensor exact_gelu(const at::Tensor& pre_NF) const;
  at::Tensor exact_gelu_backward(const at::Tensor& grad_NF, const at::Tensor& pre_NF) const;
  /// pre_NF += bias in place, unless undefined; returns gelu_tanh(pre).
  at::Tensor bias_gelu(at::Tensor& pre_NF, const at::Tensor& bias_F) const;
  /// grad_NF becomes the gradient of pre_NF in place; its column sums are the bias's.
  /// \param again_NF  receives gelu(pre), so that the forward need not keep it; may be null
  void bias_gelu_backward(at::Tensor& grad_NF, const at::Tensor& pre_NF, GradSlot* grad_bias_F,
                          at::Tensor* again_NF = nullptr) const;
  /// \return act(gate) * up. Both have the same row stride.
  at::Tensor gated(GateActivation gate, const at::Tensor& gate_NF, const at::Tensor& up_NF) const;
  /// In place: gate and up become their gradients, and grad_NF becomes the recomputed output.
  void gated_backward(GateActivation gate, at::Tensor& grad_NF, at::Tensor& gate_NF, at::Tensor& up_NF) const;
  /// x += bias (+ y when defined), in place.
  void add_bias(at::Tensor& x_ND, const at::Tensor& y_ND, const at::Tensor& bias_D) const;
  /// Gradient of a bias: slot (+)= column sums. \param slot  may be null
  void bias_grad(GradSlot* slot, const at::Tensor& grad_ND) const;
  /// \return keys for dropout(), int64 [samples * rows_per_sample] on the device of its input: consecutive rows of a
  /// sample differ by `step`
  at::Tensor dropout_keys(const DropoutSeeds& place, std::int64_t rows_per_sample, std::uint64_t step) const;
  /// Zeroes elements with `probability` and scales the others by 1 / (1 - probability), in place. The mask depends on
  /// keys_N alone, so the same call is the backward.
  void dropout(at::Tensor& x_ND, const at::Tensor& keys_N, double probability) const;

  // --- attention
  /// Cosines and sines of positions [0, positions). \param frequencies  radians per position
  RopeTable rope_table(std::span<const float> frequencies, std::int64_t positions) const;
  /// Applies the rotary embedding to the first heads * head_size columns of x_NC in place. \param inverse  rotates
  /// back: the backward
  void rope(at::Tensor& x_NC, std::int64_t heads, std::int64_t head_size, const RopeTable& table,
            const TokenPositions& place, bool inverse) const;
  /// Causal self-attention of rows, or of the documents packed into them; padding gives zeros.
  /// \param qkv_NC  rows of [q | k | v]: [H, head_size], then twice [kv_heads, head_size]; must outlive the backward
  /// \param state   receives what the backward needs; null without a backward
  at::Tensor attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                       std::unique_ptr<AttentionState>* state) const;
  /// \return gradient of qkv_NC
  at::Tensor attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC, const at::Tensor& out_ND,
                                const AttentionShape& shape, std::unique_ptr<AttentionState> state) const;
  /// \return gradient of qkv_NC before the rotary embedding was applied
  virtual at::Tensor rotary_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                               const at::Tensor& out_ND, const AttentionShape& shape,
                                               std::unique_ptr<AttentionState> state, const Rotation& rotation) const;

  // --- loss
  /// Logits that the device has room to compute at once rather than in chunks.
  virtual std::int64_t logits_bytes() const { return 0; }
  /// Adds the cross-entropy of logits_NV against the targets, times their weights, to sums.nats, and the weights to
  /// sums.weight; columns from `vocab` on are padding. With grad_scale != 0, logits_NV becomes the gradient of
  /// grad_scale * loss. Where the targets have groups and `sums` has sums for them, losses and weights of each group
  /// are added there, too.
  /// \param losses_N  receives the loss of each target, 0 where it is ignored: float64 on the host, float32 on a
  /// device.
  ///   \pre the targets then have neither weights nor groups, and grad_scale is 0
  void cross_entropy(StepSums& sums, at::Tensor& logits_NV, const Targets& targets, std::int64_t vocab,
                     const GradScale& grad_scale, at::Tensor* losses_N = nullptr) const;
  /// Computes the entropy of the softmax over the first `vocab` columns of each row, 0 where its target is negative:
  /// float64 on the host, float32 on a device.
  at::Tensor entropies(const at::Tensor& logits_NV, const at::Tensor& targets_N, std::int64_t vocab) const;
  /// Adds sums.pending to the host's fields. Waits for the device: synchronize() its back end first.
  void fetch(StepSums& sums) const;

 protected:
  /// Attention of whole rows. \pre shape.packing is null
  virtual at::Tensor row_attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                                   std::unique_ptr<AttentionState>* state) const = 0;
  virtual at::Tensor row_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                            const at::Tensor& out_ND, const AttentionShape& shape,
                                            std::unique_ptr<AttentionState> state) const = 0;
  /// Attention of packed documents. This implementation runs row_attention() once per document.
  virtual at::Tensor packed_attention(const at::Tensor& qkv_NC, const AttentionShape& shape,
                                      std::unique_ptr<AttentionState>* state) const;
  virtual at::Tensor packed_attention_backward(const at::Tensor& grad_out_ND, const at::Tensor& qkv_NC,
                                               const at::Tensor& out_ND, const AttentionShape& shape,
                                               std::unique_ptr<AttentionState> state) const;
  /// \return the shape of one document as a row of its own
  AttentionShape shape_of(const AttentionShape& shape, const Packing::Document& document) const;
  void dequantize_into(at::Tensor& out_OI, const Nf4Matrix& matrix) const;
  /// \return float32 zeros [columns of x], the initial value of column sums
  static at::Tensor zero_sums(const at::Tensor& x_ND);
  /// out (+)= a @ b, 2-D with any strides; 3-D only without addition.
  virtual void product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const = 0;
  /// out = a @ b + bias, the bias added to each row before the sum is rounded.
  virtual void biased_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) const;
  /// Product of 16-bit factors into a float32 `out` without intermediate rounding. \return false if not supported
  virtual bool wide_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const;
  /// \return beta x + alpha a @ b, 2-D, rounded once
  virtual at::Tensor blended_product(const at::Tensor& x, double beta, const at::Tensor& a, const at::Tensor& b,
                                     double alpha) const;
  /// to += from, which has another dtype.
  virtual void add_converted(at::Tensor& to, const at::Tensor& from) const = 0;
  /// Copies float64 values to the host. Waits for the device.
  virtual std::vector<double> read(const at::Tensor& values) const;
  /// Starts the same copy. \return a function that waits for the copy, but not for work that is queued later
  virtual std::function<std::vector<double>()> start_read(const at::Tensor& values) const;

  // --- ATen's operators that a prediction replaces: they have no meta kernel, or allocate more than their result
  /// float32 [columns]
  virtual at::Tensor column_sums(const at::Tensor& x_ND) const;
  /// \return integer positions [n] of n rows
  virtual at::Tensor row_positions(std::int64_t n, const TokenPositions& place) const;
  virtual at::Tensor select_rows(const at::Tensor& from_PD, const at::Tensor& rows_N) const;
  /// \return log-softmax over columns, float32
  virtual at::Tensor log_softmax(const at::Tensor& logits_NV) const;
  /// \param stats  receives mean and rstd, float32 [N]
  virtual at::Tensor plain_layer_norm(const at::Tensor& x_ND, const at::Tensor& gamma_D, const at::Tensor& beta_D,
                                      NormResult& stats) const;
  /// \return gradients of x, gamma and beta
  virtual std::array<at::Tensor, 3> plain_layer_norm_grads(const NormBackward& norm) const;
  /// \return factors of a dropout [keys, columns]: 0, or 1 / (1 - probability). Without fused kernels computed on the
  /// host, so that the mask is the same on every device.
  virtual at::Tensor dropout_mask(const at::Tensor& keys_N, std::int64_t columns, double probability,
                                  at::ScalarType dtype) const;
  virtual void plain_adamw(const AdamWUpdate& update) const;
  /// Rounds `from`, contiguous on the host, to the dtype of `to`, contiguous on the device.
  virtual void send_rounded(const at::Tensor& to, const at::Tensor& from) const;

  /// \param cpu    kernels that compute; null on other devices
  /// \param fused  kernels of the device; may be null
  Ops(const kernels::Table* cpu, std::shared_ptr<const fused::Kernels> fused, detail::WorkCounter work);
  /// \return the fused kernels if they support these tensors: one dtype, contiguous, on the device. Undefined tensors
  /// are ignored. Otherwise null
  const fused::Kernels* fused_for(std::initializer_list<const at::Tensor*> tensors) const;
  /// True if x was offloaded from the device to the host, whose kernels then compute.
  bool is_offloaded(const at::Tensor& x) const { return is_on_host(x) && !device().is_cpu(); }

  const kernels::Table* cpu_;
  std::shared_ptr<const fused::Kernels> fused_;
  detail::WorkCounter work_;  ///< counts in a prediction only

 private:
  /// Values and thresholds of codes on the device, made at their first use. By format, and whether they are signed.
  mutable std::map<std::pair<MomentFormat, bool>, std::pair<at::Tensor, at::Tensor>> moment_tables_;
};

/// The CPU operations, for work that stays on the host with any device.
const Ops& host_ops();

}  // namespace fsdp
