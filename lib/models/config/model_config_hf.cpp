// config.json of Hugging Face's transformers. minGPT and GPT-2 are one model: pre-norm blocks, learned positions,
// scaled causal attention, the tanh form of GELU (transformers' "gelu_new") and a head tied to the token embedding.
#include "lib/base/json_text.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp {
namespace {

using config_detail::field;
using config_detail::field_or;

nlohmann::json gpt2_config(const ModelConfig& config) {
  nlohmann::json json = {{"architectures", {"GPT2LMHeadModel"}},
                         {"model_type", "gpt2"},
                         {"activation_function", "gelu_new"},
                         {"n_layer", config.num_layers},
                         {"n_head", config.num_heads},
                         {"n_embd", config.embed_size},
                         {"n_inner", config.ffn_hidden_size},
                         {"n_positions", config.block_size},
                         {"n_ctx", config.block_size},
                         {"vocab_size", config.vocab_size},
                         {"layer_norm_epsilon", config.layer_norm_eps},
                         {"attn_pdrop", config.dropout},
                         {"embd_pdrop", config.dropout},
                         {"resid_pdrop", config.dropout},
                         {"initializer_range", 0.02},
                         {"scale_attn_weights", true},
                         {"scale_attn_by_inverse_layer_idx", false},
                         {"tie_word_embeddings", true}};
  // GPT-2's <|endoftext|>; transformers' default of the same value would lie outside a smaller vocabulary.
  constexpr std::int64_t kEndOfText = 50256;
  const auto token = config.vocab_size > kEndOfText ? nlohmann::json(kEndOfText) : nlohmann::json();
  json["bos_token_id"] = token;
  json["eos_token_id"] = token;
  return json;
}

}  // namespace

ModelConfig config_detail::gpt2_from_json(const nlohmann::json& json, const std::string& source) {
  const auto require = [&](bool good, const char* name, const std::string& wanted) {
    if (!good) {
      throw FormatError(source + ": field '" + name + "' is " + json_text(json.at(name)) + "; a minGPT has " + wanted);
    }
  };
  ModelConfig config;
  config.num_layers = field<std::int64_t>(json, "n_layer", source);
  config.num_heads = field<std::int64_t>(json, "n_head", source);
  config.embed_size = field<std::int64_t>(json, "n_embd", source);
  config.vocab_size = field<std::int64_t>(json, "vocab_size", source);
  config.block_size = field<std::int64_t>(json, "n_positions", source);
  config.layer_norm_eps = field_or(json, "layer_norm_epsilon", config.layer_norm_eps, source);
  config.dropout = field_or(json, "resid_pdrop", 0.1, source);
  const auto activation = field_or(json, "activation_function", std::string("gelu_new"), source);
  require(activation == "gelu_new" || activation == "gelu_pytorch_tanh", "activation_function",
          "the tanh form of GELU");
  require(field_or(json, "scale_attn_weights", true, source), "scale_attn_weights", "scaled attention");
  require(!field_or(json, "scale_attn_by_inverse_layer_idx", false, source), "scale_attn_by_inverse_layer_idx",
          "attention scaled alike in all layers");
  require(!field_or(json, "add_cross_attention", false, source), "add_cross_attention", "no cross attention");
  require(field_or(json, "tie_word_embeddings", true, source), "tie_word_embeddings",
          "its head tied to the token embedding");
  config_detail::validate(config, source);  // before anything is multiplied
  config.ffn_hidden_size = field_or(json, "n_inner", 4 * config.embed_size, source);
  config_detail::validate(config, source);
  return config;
}

nlohmann::json hf_config(const ModelConfig& config) {
  if (config.architecture == Architecture::mingpt) return gpt2_config(config);
  auto json = config_detail::decoder_to_json(config);
  json["architectures"] = {std::string(config_detail::find_family(config.traits.family)->architecture)};
  json["initializer_range"] = 0.02;
  return json;
}

ModelConfig model_config_from_hf(const nlohmann::json& json, const std::string& source) {
  if (!json.is_object()) throw FormatError(source + ": a JSON object was expected");
  field<std::string>(json, "model_type", source);  // ours may leave it out, theirs not
  return model_config_from_json(json, source);
}

}  // namespace fsdp
