#pragma once
// Names of the tensors of a GPTModel of Megatron-core beside transformers', and which elements of one are which of the
// other.
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/types/index.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp::megatron {

inline constexpr std::string_view kEmbedding = "embedding.word_embeddings.weight";
inline constexpr std::string_view kLayers = "decoder.layers.";
inline constexpr std::string_view kState = "optimizer.state.";  ///< then the key (exp_avg) and the parameter's name
inline constexpr std::string_view kMasters = "fp32_param";      ///< the key of float32 masters

/// The rows of a tensor of Megatron-core that one tensor of transformers has.
enum class Rows { all, queries, keys, values, gate, up, vocabulary };

struct Name {
  std::string_view stored;  ///< in Megatron-core; of a layer: after "decoder.layers." or "decoder.layers.<N>."
  std::string_view hf;      ///< in transformers; of a layer: after "model.layers.<N>."
  Rows rows = Rows::all;
  bool is_written = true;  ///< false: an older name, which is read only
};

inline constexpr std::array<Name, 3> kOuterNames{{{kEmbedding, "model.embed_tokens.weight", Rows::vocabulary},
                                                  {"decoder.final_layernorm.weight", "model.norm.weight"},
                                                  {"output_layer.weight", "lm_head.weight", Rows::vocabulary}}};

/// Names that one tensor of Megatron-core holds follow each other.
inline constexpr std::array<Name, 20> kLayerNames{
    {{"self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"},
     {"input_layernorm.weight", "input_layernorm.weight", Rows::all, false},
     {"self_attention.linear_qkv.weight", "self_attn.q_proj.weight", Rows::queries},
     {"self_attention.linear_qkv.weight", "self_attn.k_proj.weight", Rows::keys},
     {"self_attention.linear_qkv.weight", "self_attn.v_proj.weight", Rows::values},
     {"self_attention.linear_qkv.bias", "self_attn.q_proj.bias", Rows::queries},
     {"self_attention.linear_qkv.bias", "self_attn.k_proj.bias", Rows::keys},
     {"self_attention.linear_qkv.bias", "self_attn.v_proj.bias", Rows::values},
     {"self_attention.q_layernorm.weight", "self_attn.q_norm.weight"},
     {"self_attention.k_layernorm.weight", "self_attn.k_norm.weight"},
     {"self_attention.linear_proj.weight", "self_attn.o_proj.weight"},
     {"self_attention.linear_proj.bias", "self_attn.o_proj.bias"},
     {"mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight"},
     {"pre_mlp_layernorm.weight", "post_attention_layernorm.weight", Rows::all, false},
     {"mlp.linear_fc1.weight", "mlp.gate_proj.weight", Rows::gate},
     {"mlp.linear_fc1.weight", "mlp.up_proj.weight", Rows::up},
     {"mlp.linear_fc1.bias", "mlp.gate_proj.bias", Rows::gate},
     {"mlp.linear_fc1.bias", "mlp.up_proj.bias", Rows::up},
     {"mlp.linear_fc2.weight", "mlp.down_proj.weight"},
     {"mlp.linear_fc2.bias", "mlp.down_proj.bias"}}};

/// Run r of a tensor of transformers, its elements [r * length, (r + 1) * length), is elements [first + r * stride,
/// first + r * stride + length) of the tensor, or of the layer of a stack, in Megatron-core. Row-major elements.
struct Runs {
  std::uint64_t first = 0, length = 0, stride = 0;
};

/// The rows that Megatron-core has for a tensor of transformers of `hf_rows` rows; with Rows::vocabulary at least
/// these.
inline std::int64_t stored_rows(Rows rows, std::int64_t hf_rows, const ModelConfig& config) {
  if (rows == Rows::gate || rows == Rows::up) return 2 * hf_rows;
  const bool is_part = rows == Rows::queries || rows == Rows::keys || rows == Rows::values;
  return is_part ? (config.num_heads + 2 * config.kv_heads()) * config.head_width() : hf_rows;
}

/// \param hf_elements  of the tensor of transformers; \param columns  elements of a row
inline Runs runs_of(Rows rows, std::uint64_t hf_elements, std::uint64_t columns, const ModelConfig& config) {
  const auto head = static_cast<std::uint64_t>(config.head_width()) * columns;
  const auto queries = static_cast<std::uint64_t>(config.num_heads / config.kv_heads()) * head;  // of one group
  switch (rows) {
    case Rows::queries:
      return {.first = 0, .length = queries, .stride = queries + 2 * head};
    case Rows::keys:
      return {.first = queries, .length = head, .stride = queries + 2 * head};
    case Rows::values:
      return {.first = queries + head, .length = head, .stride = queries + 2 * head};
    case Rows::gate:
      return {.first = 0, .length = hf_elements, .stride = 2 * hf_elements};
    case Rows::up:
      return {.first = hf_elements, .length = hf_elements, .stride = 2 * hf_elements};
    default:
      return {.first = 0, .length = hf_elements, .stride = hf_elements};
  }
}

/// Splits "<above><N>.<rest>" into N and rest; nothing for any other name.
inline std::optional<std::pair<std::int64_t, std::string_view>> layer_of(std::string_view above,
                                                                         std::string_view name) {
  if (!name.starts_with(above)) return std::nullopt;
  name.remove_prefix(above.size());
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = to_index(end - name.data());
  constexpr std::int64_t most = 1 << 20;
  const bool is_number =
      error == std::errc() && layer >= 0 && layer < most && digits + 1 < name.size() && name[digits] == '.';
  return is_number ? std::optional(std::pair(layer, name.substr(digits + 1))) : std::nullopt;
}

}  // namespace fsdp::megatron
