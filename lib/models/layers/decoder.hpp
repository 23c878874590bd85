#pragma once
// A decoder-only language model as layers, for training and generation; minGPT and Llama have the same interface.
#include <c10/core/ScalarType.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/compute/ops/op_types.hpp"
#include "lib/compute/tensor/layer.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {

class Ops;

/// Keys and values of one layer for the tokens so far. Grows with the sequence up to the model's number of positions;
/// in layers with a window, older keys are dropped.
struct LayerCache {
  at::Tensor keys_HTC;  ///< [key heads, capacity, head_size]
  at::Tensor values_HTC;
  std::int64_t first_position = 0;  ///< position of the first stored key
};

/// The new tokens of one sequence, at positions [cache_length, cache_length + tokens).
struct DecodePart {
  std::int64_t tokens = 0;
  std::int64_t cache_length = 0;  ///< tokens of the sequence that the model has seen
  LayerCache* cache = nullptr;    ///< of the sequence and the layer
  /// False: the tokens are a branch of the sequence whose keys and values no later token sees. They are not stored, so
  /// that many branches share one cache, which a part before them may fill. A window keeps its dropped keys away from
  /// branches only as far as they are stored.
  bool keeps = true;
  /// Not null: the first `cache_length` tokens are those of this cache, which a part before has filled; `cache` takes
  /// them from there. A part that keeps.
  const LayerCache* beginning = nullptr;
};

/// A transformer block that can also process only the new tokens of sequences.
class DecoderBlock : public Layer {
 public:
  bool is_block() const final { return true; }
  /// \param x_ND  new tokens of the parts, one part after the other; rows after them are padding
  virtual at::Tensor decode(LayerParams params, const at::Tensor& x_ND, std::span<const DecodePart> parts) const = 0;
};

/// Name of the sum of texts to which a classifier gives the label that they have (LossLayer::sums()).
inline constexpr const char* kAccuracySum = "label_accuracy";

/// Final norm, head and loss; can also return the logits. The targets of a model with scores are labels, or 0 where it
/// has one score, whose negative is the loss of a target for JointLoss; each text has one target, its last token's.
class DecoderHead : public LossLayer {
 public:
  /// Logits [N, vocabulary], float32.
  virtual at::Tensor logits(LayerParams params, const at::Tensor& x_ND) const = 0;
};

/// Options of a decoder other than its ModelConfig.
struct DecoderOptions {
  LoraConfig lora;
  QuantizeConfig quantize;
  /// Dtype of GEMMs with quantised matrices; default: the activations' dtype. In a model without quantised matrices
  /// Float8_e4m3fn selects fp8 GEMMs in blocks, for matrices whose sizes allow it (linear_group.cpp).
  std::optional<c10::ScalarType> compute_dtype;
  std::vector<std::string> groups = {};  ///< of tokens, whose losses are summed by themselves: Targets::groups_N
};

/// A decoder as layers over one parameter table.
struct Decoder {
  ModelConfig config;  ///< adapted_model()
  DecoderOptions options;
  std::map<std::string, LoraModule> adapters;  ///< adapted_modules()
  std::vector<ParameterSpec> parameters;       ///< quantized_table(), then adapter_table()
  std::vector<std::unique_ptr<Layer>> layers;  ///< embedding, then the blocks
  std::vector<const DecoderBlock*> blocks;     ///< of `layers`
  std::unique_ptr<DecoderHead> loss;

  /// Computes a block's output for the new tokens of one sequence; their keys and values are added to `cache` (one per
  /// block).
  at::Tensor decode_block(int block, LayerParams params, const at::Tensor& x_ND, LayerCache& cache,
                          std::int64_t cache_length) const;
  /// Returns the logits [1, vocabulary] of the last row of x_ND, in float32.
  at::Tensor last_logits(LayerParams params, const at::Tensor& x_ND) const;
};

/// Returns the multiple to which rows of a parameter's gathered buffer are padded for the head's matrix products: in
/// float32, an unpadded vocabulary of 50257 costs a quarter of their speed.
std::int64_t row_alignment(const ParameterSpec& spec);

/// \param ops  operations for the layers; must outlive the decoder
/// \throws RequestError if sizes are inconsistent or not supported
Decoder make_decoder(const ModelConfig& config, const Ops& ops, const DecoderOptions& options = {});

namespace detail {
/// Returns the positions of a micro-batch's tokens.
inline TokenPositions token_positions(const MicroBatch& batch) {
  return {batch.length, batch.first_position, batch.packing != nullptr ? batch.packing->positions_N : at::Tensor()};
}

/// Returns the RMSNorm of the model.
inline RmsNorm rms_norm_of(const ModelConfig& config) {
  return {config.layer_norm_eps, config.traits.offset_norms ? 1.0 : 0.0};
}

/// \param parameters  indices of the final norm's weight (and bias for LayerNorm; otherwise RMSNorm), then of the head,
/// to which the head's adapter adds its own
std::unique_ptr<DecoderHead> make_head(const Ops& ops, const Decoder& decoder, std::vector<int> parameters);

/// Appends a block to the decoder's layers.
void add_block(Decoder& decoder, std::unique_ptr<DecoderBlock> block);

/// \throws std::logic_error if the table has no such name
int parameter_index(const Decoder& decoder, const std::string& name);
}  // namespace detail

}  // namespace fsdp
