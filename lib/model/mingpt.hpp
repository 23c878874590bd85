#pragma once
// minGPT (Karpathy): token and position embeddings, pre-norm blocks with tanh-GELU, head tied to the token embedding.
#include <memory>
#include <vector>

#include "lib/config/model_config.hpp"
#include "lib/tensor/stage.hpp"

namespace fsdp {

/// Keys and values of one layer for the tokens so far, [1, H, capacity, head_size].
struct LayerCache {
  at::Tensor keys_HTC;
  at::Tensor values_HTC;
};

/// A decoder as stages over one parameter table.
struct Decoder {
  ModelConfig config;
  std::vector<ParameterSpec> parameters;
  std::vector<std::unique_ptr<Stage>> stages;  ///< embedding, then the blocks
  std::unique_ptr<LossStage> loss;

  /// Generation: the stage's output for new tokens only, keys and values kept in `cache` (one per block).
  /// \param x_ND  new tokens of one sequence at positions [cache_length, cache_length + N)
  at::Tensor decode_block(int block, StageParams params, const at::Tensor& x_ND, LayerCache& cache,
                          std::int64_t cache_length) const;
  /// Logits [1, vocabulary] of the last row of x_ND, float32.
  at::Tensor last_logits(StageParams params, const at::Tensor& x_ND) const;
};

/// Rows of a parameter's gathered buffer are padded to this multiple for the head's matrix products: a vocabulary of
/// 50257 costs a quarter of their speed in float32.
std::int64_t row_alignment(const ParameterSpec& spec);

Decoder make_mingpt(const ModelConfig& config);

namespace detail {
/// \param parameters  final norm's weight and bias, then the tied token embedding
std::unique_ptr<LossStage> make_mingpt_head(const ModelConfig& config, std::vector<int> parameters);
}  // namespace detail

}  // namespace fsdp
