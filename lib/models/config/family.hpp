#pragma once
// Families of models with Llama's kind of layers: one row each. A new one is a row here, its tensors' names in
// decoder_parameters.cpp where they are new, and a fixture.
#include <optional>
#include <span>
#include <string_view>

#include "lib/models/config/decoder_traits.hpp"

namespace fsdp::config_detail {

/// Which layers slide, where config.json has no layer_types.
enum class Windows {
  none,
  all,          ///< wherever sliding_window is a number
  from_layer,   ///< use_sliding_window, and from max_window_layers on
  alternating,  ///< every other one, the first included
  pattern       ///< all but each sliding_window_pattern-th
};

/// What config.json need not say, as transformers 5.23 has it.
struct Family {
  std::string_view type;          ///< model_type
  std::string_view architecture;  ///< the class of transformers
  DecoderTraits traits;           ///< those that all its models share
  Windows windows = Windows::none;
  std::int64_t window = 0;         ///< sliding_window where it is absent
  std::int64_t head_size = 0;      ///< head_dim; 0: hidden_size / num_attention_heads
  std::int64_t kv_heads = 0;       ///< num_key_value_heads; 0: num_attention_heads
  std::int64_t positions = 2048;   ///< max_position_embeddings
  double eps = 1e-6;               ///< rms_norm_eps
  double rope_theta = 1e4;         ///< of full layers
  std::int64_t padding_id = -1;    ///< pad_token_id
  bool tied = false;               ///< tie_word_embeddings
  bool has_attention_bias = true;  ///< attention_bias is heeded, on q, k, v and o
  bool has_mlp_bias = false;
  bool has_softcaps = false;  ///< attn_logit_softcapping is heeded
};

std::span<const Family> families();
/// Null: there is none of this model_type.
const Family* find_family(std::string_view type);

}  // namespace fsdp::config_detail
