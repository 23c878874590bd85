#pragma once
// A transformer block in two halves, a mixer of tokens and a feed-forward, and the frame that joins them: the residual
// sums, the norms around the halves, and dropout. Shapes: N tokens, D embedding size.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/compute/ops/op_types.hpp"
#include "lib/compute/tensor/layer.hpp"
#include "lib/models/layers/decoder.hpp"
#include "lib/models/layers/linear_group.hpp"

namespace fsdp::detail {

/// A block of a decoder, as its parts are built from it.
struct BlockSite {
  /// \param prefix  common prefix of the names of the block's parameters, including the dot
  /// \pre the decoder's parameters are set
  BlockSite(const Ops& with, const Decoder& of, int block, const std::string& prefix);

  const Ops& ops;
  const Decoder& decoder;
  int index;
  ParameterFinder finder;
  /// The dropout of the adapters of the block's four groups of matrices has this place in the model, and the next
  /// three.
  std::uint64_t first_adapter_place;

  /// \param number  0 and 1: matrices before and after the mixing of tokens; 2 and 3: of the feed-forward
  LinearGroup group(std::vector<Linear> matrices, std::uint64_t number) const;
};

/// Says whether a half or its frame adds the bias of the half's output and computes that bias's gradient.
enum class OutputBias : std::uint8_t {
  in_product,      ///< the half does both
  in_sum,          ///< the frame adds it, in the pass of the residual sum; the half computes the gradient
  in_sum_and_norm  ///< the frame does both: the gradient in the pass of the next norm's backward, if it can
};

/// One half of a block, a mixer or a feed-forward: a function of N rows, with backward. It knows neither the residual
/// sum nor the norms around it. An expert layer, whose loss goes to the step's sums, is a half, too.
class BlockHalf {
 public:
  virtual ~BlockHalf() = default;

  struct Output {
    at::Tensor out_ND;
    at::Tensor held;  ///< the frame frees it when the block's forward ends; may be undefined
  };
  /// \param in_ND  is released as soon as it has been read
  /// \param state  receives what the backward needs; null without a backward
  virtual Output forward(LayerParams p, const StepContext& step, at::Tensor in_ND,
                         std::unique_ptr<LayerState>* state) const = 0;
  /// The backward in two parts: the input is computed again by the backward of the norm before the half, which is the
  /// frame's. \param grad_ND  gradient of the output, released as soon as it has been read
  /// \return the gradient of the input
  virtual at::Tensor backward_input(LayerParams p, LayerGrads g, const StepContext& step, at::Tensor grad_ND,
                                    LayerState& state) const = 0;
  /// True if backward_weights() needs the input.
  virtual bool needs_input(LayerGrads g) const = 0;
  /// Computes those gradients of weights that need the input; backward_input() has computed all others.
  virtual void backward_weights(LayerParams p, LayerGrads g, const StepContext& step, const at::Tensor& in_ND,
                                LayerState& state) const = 0;

  virtual OutputBias output_bias_by() const { return OutputBias::in_product; }
  /// Index of the output's bias among the block's parameters, for the frame; -1: there is none, or it is in the
  /// product.
  virtual int output_bias() const { return -1; }
};

using FeedForward = BlockHalf;

/// The last matrix of a half, with the bias of its output.
class OutputProjection {
 public:
  /// \param number  as in BlockSite::group()
  OutputProjection(const BlockSite& site, Linear matrix, OutputBias bias, std::uint64_t number);

  /// The product, with the bias if the half adds it.
  at::Tensor forward(LayerParams p, const MicroBatch& batch, const at::Tensor& x_NI, LinearState* keep) const;
  /// For the backward.
  const LinearGroup& matrix() const { return matrix_; }
  OutputBias bias_by() const { return by_; }
  /// For BlockHalf::output_bias().
  int bias_of_frame() const { return by_ == OutputBias::in_product ? -1 : bias_; }

 private:
  OutputBias by_;
  int bias_;
  LinearGroup matrix_;
};

/// The half in which tokens meet: attention.
class Mixer : public BlockHalf {
 public:
  /// Output for the new tokens of sequences, as DecoderBlock::decode().
  virtual at::Tensor decode(LayerParams p, const at::Tensor& in_ND, std::span<const DecodePart> parts) const = 0;
};

/// A norm of a block: LayerNorm if it has a bias, else RMSNorm.
class BlockNorm {
 public:
  /// \param module  without ".weight"; a block without this module has no such norm
  BlockNorm(const BlockSite& site, const std::string& module);
  /// No norm.
  explicit BlockNorm(const BlockSite& site) : BlockNorm(site, "") {}

  bool is_there() const { return weight_ >= 0; }
  /// Norm of x (+ y + y_bias where they are defined). \pre is_there()
  NormResult forward(LayerParams p, const at::Tensor& x_ND, const at::Tensor& y_ND = {},
                     const at::Tensor& y_bias_D = {}) const;
  /// Without a norm, the sum of both gradients. \param around  without gamma \param y_bias  slot of y_bias; may be null
  /// \param normed_ND  receives the norm's output, computed again; null: it is not needed
  at::Tensor backward(LayerParams p, LayerGrads g, const NormBackward& around, GradSlot* y_bias,
                      at::Tensor* normed_ND) const;

 private:
  const Ops& ops_;
  int weight_, bias_;
  double eps_;
  RmsNorm rms_;
};

/// The norms around the halves; each may be missing.
struct BlockNorms {
  BlockNorm before_mixer, after_mixer, before_feed_forward, after_feed_forward;
};

/// One half after the other, each with a residual sum of its own: x + mixer, then + feed-forward. Norms after a half
/// come before its sum. With the model's dropout.
std::unique_ptr<DecoderBlock> make_sequential_block(const BlockSite& site, const BlockNorms& norms,
                                                    std::unique_ptr<Mixer> mixer,
                                                    std::unique_ptr<FeedForward> feed_forward);

/// Both halves read the block's input: x + mixer + feed-forward. \param before_feed_forward  missing: the halves share
/// the norm before the mixer
std::unique_ptr<DecoderBlock> make_parallel_block(const BlockSite& site, const BlockNorm& before_mixer,
                                                  const BlockNorm& before_feed_forward, std::unique_ptr<Mixer> mixer,
                                                  std::unique_ptr<FeedForward> feed_forward);

}  // namespace fsdp::detail
