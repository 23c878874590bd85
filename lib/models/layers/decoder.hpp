#pragma once
// A decoder-only language model as layers: minGPT and Llama behind one interface, for training and for generation.
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <vector>

#include "lib/compute/ops/op_types.hpp"
#include "lib/compute/tensor/layer.hpp"
#include "lib/models/config/lora.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {

class Ops;

/// Keys and values of one layer for the tokens so far. Grows with the sequence, never beyond the model's positions;
/// where queries see a window, what lies behind it is given up.
struct LayerCache {
  at::Tensor keys_HTC;  ///< [heads of keys, capacity, head_size]
  at::Tensor values_HTC;
  std::int64_t first_position = 0;  ///< of the first key that is kept
};

/// A transformer block that can also run on new tokens alone.
class DecoderBlock : public Layer {
 public:
  bool is_block() const final { return true; }
  /// \param x_ND  new tokens of one sequence at positions [cache_length, cache_length + N)
  virtual at::Tensor decode(LayerParams params, const at::Tensor& x_ND, LayerCache& cache,
                            std::int64_t cache_length) const = 0;
};

/// Final norm, head and loss, or the logits themselves.
class DecoderHead : public LossLayer {
 public:
  /// Logits [N, vocabulary], float32.
  virtual at::Tensor logits(LayerParams params, const at::Tensor& x_ND) const = 0;
};

/// Options of a decoder beside its ModelConfig.
struct DecoderOptions {
  LoraConfig lora;
  QuantizeConfig quantize;
  /// Dtype of GEMMs with quantised matrices; default: that of activations. In a model without quantised matrices
  /// Float8_e4m3fn means fp8 GEMMs in blocks, for matrices whose sizes allow it (linear_group.cpp).
  std::optional<c10::ScalarType> compute_dtype;
};

/// A decoder as layers over one parameter table.
struct Decoder {
  ModelConfig config;
  DecoderOptions options;
  std::vector<ParameterSpec> parameters;       ///< quantized_table(), then adapter_table()
  std::vector<std::unique_ptr<Layer>> layers;  ///< embedding, then the blocks
  std::vector<const DecoderBlock*> blocks;     ///< of `layers`
  std::unique_ptr<DecoderHead> loss;

  /// Generation: the layer's output for new tokens only, keys and values kept in `cache` (one per block).
  at::Tensor decode_block(int block, LayerParams params, const at::Tensor& x_ND, LayerCache& cache,
                          std::int64_t cache_length) const;
  /// Logits [1, vocabulary] of the last row of x_ND, float32.
  at::Tensor last_logits(LayerParams params, const at::Tensor& x_ND) const;
};

/// Rows of a parameter's gathered buffer are padded to this multiple for the head's matrix products: a vocabulary of
/// 50257 costs a quarter of their speed in float32.
std::int64_t row_alignment(const ParameterSpec& spec);

/// \param ops  what layers compute with; must outlive the decoder
/// \throws UsageError when the sizes cannot work together or need what is not built
Decoder make_decoder(const ModelConfig& config, const Ops& ops, const DecoderOptions& options = {});

namespace detail {
/// Positions of the tokens of a micro-batch.
inline RopePlace place_of(const MicroBatch& batch) {
  return {batch.length, batch.first_position, batch.packing != nullptr ? batch.packing->positions_N : at::Tensor()};
}

/// The norm of a decoder of Llama's kind.
inline RmsNorm rms_norm_of(const ModelConfig& config) {
  return {config.layer_norm_eps, config.traits.offset_norms ? 1.0 : 0.0};
}

/// The layers of either architecture; `parameters` and `config` of the decoder are set.
void add_mingpt_layers(Decoder& decoder, const Ops& ops);
void add_llama_layers(Decoder& decoder, const Ops& ops);

/// \param parameters  the final norm's weight (and bias: LayerNorm, else RMSNorm), then the head
std::unique_ptr<DecoderHead> make_head(const Ops& ops, const ModelConfig& config, std::vector<int> parameters);

/// Behind the layers that are there.
void add_block(Decoder& decoder, std::unique_ptr<DecoderBlock> block);

/// Indices of the block's parameters, in the table's order.
std::vector<int> block_parameters(const Decoder& decoder, int block);
/// \throws std::logic_error when the table has no such name
int parameter_index(const Decoder& decoder, const std::string& name);
}  // namespace detail

}  // namespace fsdp
