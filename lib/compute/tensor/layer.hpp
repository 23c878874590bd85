#pragma once
// The interface between models and the engine: a model is an ordered list of layers.
//
// A decoder is a chain (embedding, blocks, head with loss). The engine makes each layer's parameters available, runs
// it, and releases them; a layer knows nothing of shards. Shapes: N tokens of the micro-batch, of which the head
// computes logits of M, D embedding size.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/compute/tensor/step_sums.hpp"

namespace fsdp {

/// Documents packed into the rows of a micro-batch. A token attends to its own document only, whose positions start at
/// 0. Documents that begin alike can share the tokens of their beginning, which are then computed once.
struct Packing {
  struct Document {
    std::int64_t first, length;  ///< its own tokens: [first, first + length) of the micro-batch, in one row
    /// It begins with so many of the first tokens of the document before it, which is in the same row and shares none.
    std::int64_t shared = 0;
  };
  std::vector<Document> documents;       ///< in order of `first`, none empty; tokens between documents are padding
  at::Tensor positions_N;                ///< int32: position of each token in its document; 0 for padding
  at::Tensor starts;                     ///< int32: first tokens of documents and padding, in order, followed by N
  std::int64_t longest = 0;              ///< own tokens of the longest document or padding
  std::vector<std::int64_t> row_begins;  ///< first token of each row
  /// The same documents, each with copies of the tokens that it shares, in rows without padding. Without positions.
  /// Null: no document shares any.
  std::shared_ptr<const Packing> whole = nullptr;
  std::int64_t whole_tokens = 0;  ///< N of `whole`
};

/// The ids that follow each token, and what they weigh in the loss.
struct Targets {
  Targets(at::Tensor ids, at::Tensor weights = {}, at::Tensor groups = {})
      : ids_N(std::move(ids)), weights_N(std::move(weights)), groups_N(std::move(groups)) {}
  Targets narrow(std::int64_t first, std::int64_t count) const {
    const auto part = [&](const at::Tensor& all) { return all.defined() ? all.narrow(0, first, count) : all; };
    return {part(ids_N), part(weights_N), part(groups_N)};
  }

  at::Tensor ids_N;      ///< int32; negative: ignored
  at::Tensor weights_N;  ///< float32: factor of each target's loss; 0 ignores it, too. Undefined: each one weighs 1
  at::Tensor groups_N;   ///< int32: group of each token, whose losses are summed by themselves, too. Undefined: none
};

class JointLoss;

/// Sums over the rows of a step on all ranks by which losses are divided, known before the first forward.
struct StepCounts {
  double count = 0;   ///< divides the loss
  double tokens = 0;  ///< what a second mean is over, which is part of the loss: targets, or sequences
  /// Mean log-probability of answers to other prompts than their own, less that by the reference, at least 0: how far
  /// the model is from the reference. For a loss that takes it
  double divergence = 0;
};

/// Rows of tokens that go through the model together. A sequence is a row, or a document of a packed row.
struct MicroBatch {
  Targets targets() const { return {targets_N, weights_N, groups_N}; }

  at::Tensor ids_N;         ///< int32, row after row
  at::Tensor targets_N;     ///< int32; negative targets do not count
  std::int64_t rows = 0;    ///< 0: the rank has no samples, but takes part in every collective
  std::int64_t length = 0;  ///< N = rows * length
  at::Tensor sample_keys;   ///< int64 [rows]: seeds of dropout masks
  std::int64_t first_position = 0;
  std::int64_t num_targets = 0;                      ///< targets that are not negative, whatever they weigh
  std::shared_ptr<const Packing> packing = nullptr;  ///< null: each row is one sequence
  at::Tensor weights_N = {};                         ///< as Targets::weights_N
  at::Tensor groups_N = {};                          ///< as Targets::groups_N: of a mixture the sources
  /// int64, ascending: tokens of which the head computes logits, all that have targets among them. Undefined: all
  /// tokens
  at::Tensor head_tokens_M = {};
  at::Tensor reference_S = {};  ///< float64: log-probability of each sequence by a reference. Undefined: none
  at::Tensor targets_S = {};    ///< float64: targets of each sequence, for a joint loss
  at::Tensor desirable_S = {};  ///< float64: 1 for an answer that is wanted, else 0. Undefined: not judged
  /// Each prompt with the answer of another sample, for StepCounts::divergence: one sequence for each here.
  std::shared_ptr<MicroBatch> mismatched = nullptr;
  const JointLoss* joint = nullptr;  ///< the loss is a function of those of the sequences. Null: it is their sum
  StepCounts of_step = {};           ///< of the step that the micro-batch belongs to
};

/// A loss that is another function of the losses of a micro-batch's sequences than their sum.
class JointLoss {
 public:
  virtual ~JointLoss() = default;
  /// Names of the sums that join() adds to beside the loss.
  virtual std::vector<std::string> sums() const { return {}; }
  /// Name of the sum to which the entropies of all targets' predictions are added; null: they are not computed.
  virtual const char* entropy_sum() const { return nullptr; }
  /// Adds the loss and its count to `sums`. Nothing may wait for the device.
  /// \param nats_S  float64: losses of the targets of each sequence, times their weights
  /// \return the derivative of the loss by nats_S, float64 [S]
  virtual at::Tensor join(const MicroBatch& batch, const at::Tensor& nats_S, StepSums& sums) const = 0;
};

/// Gradient buffer of one parameter: the first write sets the gradient, later writes add (Ops::weight_grad(),
/// accumulate()).
struct GradSlot {
  at::Tensor grad;  ///< shape of the gathered parameter, reduce dtype or float32
  bool written = false;
};

/// Factor of the loss before the backward.
struct GradScale {
  GradScale(double all) : value(all) {}
  double value;
  /// `value` as float32 [1] on the device, since a captured graph would replay the scalar of its capture. Undefined:
  /// `value` is passed with each launch.
  at::Tensor on_device;
};

/// The argument of all layers of a model in one micro-batch, beside parameters and activations.
struct StepContext {
  /// \param rows  must outlive this object
  StepContext(const MicroBatch& rows, const GradScale& scale = 0.0, StepSums* into = nullptr)
      : batch(rows), grad_scale(scale), sums(into) {}

  const MicroBatch& batch;
  /// Factor of every loss before the backward: the model's, and any that a layer adds.
  GradScale grad_scale;
  /// Where a loss adds its sum. Null where none is wanted: in generation, and where a layer's forward is repeated.
  StepSums* sums;
};

/// Tensors that a layer's forward keeps for its backward; destroyed after the backward.
struct LayerState {
  virtual ~LayerState() = default;
};

/// Parameters of one layer, gathered, in the order of Layer::parameters(). Valid during the call.
using LayerParams = std::span<const at::Tensor>;
/// Gradient slots in the order of LayerParams; null for frozen parameters.
using LayerGrads = std::span<GradSlot* const>;

class Layer {
 public:
  virtual ~Layer() = default;
  virtual const std::string& name() const = 0;
  /// Indices into the model's parameter table.
  virtual const std::vector<int>& parameters() const = 0;
  /// True for a transformer block: activation checkpointing may recompute it.
  virtual bool is_block() const = 0;
  /// Names of what forward() adds to step.sums: losses of its own, whose gradients backward() adds, times
  /// step.grad_scale.
  virtual std::vector<std::string> sums() const { return {}; }

  /// \param x_ND    output of the layer before; undefined for the first
  /// \param state   receives what backward() needs; null without a backward
  virtual at::Tensor forward(LayerParams params, const StepContext& step, const at::Tensor& x_ND,
                             std::unique_ptr<LayerState>* state) = 0;
  /// \return gradient of x_ND; undefined for the first layer
  virtual at::Tensor backward(LayerParams params, LayerGrads grads, const StepContext& step, const at::Tensor& grad_ND,
                              std::unique_ptr<LayerState> state) = 0;
};

/// The last layer: final norm, head and loss in one, so that logits exist only in chunks.
class LossLayer {
 public:
  virtual ~LossLayer() = default;
  virtual const std::string& name() const = 0;
  virtual const std::vector<int>& parameters() const = 0;
  /// Names of what it adds to step.sums beside the loss.
  virtual std::vector<std::string> sums() const { return {}; }
  /// Adds the loss to step.sums.
  virtual void forward(LayerParams params, const StepContext& step, const at::Tensor& x_ND) = 0;
  /// The same, and the backward of step.grad_scale times that loss. \param grad_x_ND  receives the gradient of x_ND;
  /// null: it is not wanted
  virtual void forward_backward(LayerParams params, LayerGrads grads, const StepContext& step, const at::Tensor& x_ND,
                                at::Tensor* grad_x_ND) = 0;
};

}  // namespace fsdp
