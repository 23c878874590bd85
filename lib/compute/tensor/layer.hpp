#pragma once
// A model as an ordered list of layers: what a model hands to the engine, and all the engine knows of it.
//
// A decoder is a chain (embedding, blocks, head with loss). The engine makes each layer's parameters available, runs
// it, and releases them; a layer knows nothing of shards. Shapes: N tokens of the micro-batch, D embedding size.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

/// Documents that share the rows of a micro-batch: a token sees its own document alone, whose positions begin at 0.
struct Packing {
  struct Document {
    std::int64_t first, length;  ///< its tokens: [first, first + length) of the micro-batch, in one row
  };
  std::vector<Document> documents;  ///< in their order, none empty; what lies between them is padding
  at::Tensor positions_N;           ///< int32: of each token in its document; 0 of padding
  at::Tensor starts;                ///< int32: where documents and padding begin, in their order, and N at the end
  std::int64_t longest = 0;         ///< tokens of the longest document or padding
};

/// Rows of tokens that go through the model together.
struct MicroBatch {
  at::Tensor ids_N;         ///< int32, row after row
  at::Tensor targets_N;     ///< int32; negative targets do not count
  std::int64_t rows = 0;    ///< 0: this rank has nothing, but takes part in every collective
  std::int64_t length = 0;  ///< N = rows * length
  at::Tensor sample_keys;   ///< int64 [rows]: what dropout masks depend on, besides the place in the model
  std::int64_t first_position = 0;
  std::int64_t num_targets = 0;                      ///< of targets_N those that count
  std::shared_ptr<const Packing> packing = nullptr;  ///< null: each row is one sequence
};

/// Where the gradient of one parameter goes: the first writer sets it, later ones add (lib/compute/ops: weight_grad,
/// accumulate).
struct GradSlot {
  at::Tensor grad;  ///< shape of the gathered parameter, reduce dtype or float32
  bool written = false;
};

/// What a layer keeps from its forward for its backward. Destroyed as soon as the backward is done.
struct LayerState {
  virtual ~LayerState() = default;
};

/// Parameters of one layer, gathered, in the order of Layer::parameters(). Valid during the call.
using LayerParams = std::span<const at::Tensor>;
/// Null: of a frozen parameter, which has no gradient.
using LayerGrads = std::span<GradSlot* const>;

class Layer {
 public:
  virtual ~Layer() = default;
  virtual const std::string& name() const = 0;
  /// Indices into the model's parameter table.
  virtual const std::vector<int>& parameters() const = 0;
  /// True for a transformer block: activation checkpointing may recompute it.
  virtual bool is_block() const = 0;

  /// \param x_ND    output of the layer before; undefined for the first
  /// \param state   receives what backward() needs; null when there will be none
  virtual at::Tensor forward(LayerParams params, const MicroBatch& batch, const at::Tensor& x_ND,
                             std::unique_ptr<LayerState>* state) = 0;
  /// \return gradient of x_ND; undefined for the first layer
  virtual at::Tensor backward(LayerParams params, LayerGrads grads, const MicroBatch& batch, const at::Tensor& grad_ND,
                              std::unique_ptr<LayerState> state) = 0;
};

/// What the loss is multiplied by before its backward.
struct GradScale {
  GradScale(double all) : value(all) {}
  double value;
  /// float32 [1] on the device, the same number: work that is recorded must not keep the one of its recording.
  /// Undefined: `value` goes along with each launch.
  at::Tensor on_device;
};

/// Loss over the targets that count. What a device summed stays there until Ops::fetch(), which waits for the device:
/// a training step asks for it once, when everything else has been asked for.
struct LossSum {
  double loss_sum = 0;  ///< nats
  std::int64_t tokens = 0;
  at::Tensor pending;  ///< float64 [2] on the device: nats and tokens besides; undefined: none

  LossSum& operator+=(const LossSum& other) {
    loss_sum += other.loss_sum;
    tokens += other.tokens;
    if (!pending.defined()) {
      pending = other.pending;
    } else if (other.pending.defined()) {
      pending.add_(other.pending);
    }
    return *this;
  }
};

/// The last layer: final norm, head and loss in one, so that logits exist only in chunks.
class LossLayer {
 public:
  virtual ~LossLayer() = default;
  virtual const std::string& name() const = 0;
  virtual const std::vector<int>& parameters() const = 0;
  /// Loss only.
  virtual LossSum forward(LayerParams params, const MicroBatch& batch, const at::Tensor& x_ND) = 0;
  /// Loss, and the backward of grad_scale * loss_sum. \param grad_x_ND  receives the gradient of x_ND; null: it is not
  /// wanted
  virtual LossSum forward_backward(LayerParams params, LayerGrads grads, const MicroBatch& batch,
                                   const at::Tensor& x_ND, const GradScale& grad_scale, at::Tensor* grad_x_ND) = 0;
};

}  // namespace fsdp
