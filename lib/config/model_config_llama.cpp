// Llama's field names are those of transformers' LlamaConfig, its parameters those of LlamaForCausalLM.
#include "lib/base/json_text.hpp"
#include "lib/config/model_config_fields.hpp"

namespace fsdp::config_detail {
namespace {

/// transformers 5 keeps base and scaling of the rotary embedding in one object, 4 in two fields.
void read_rope(const nlohmann::json& json, const std::string& source, ModelConfig& config) {
  config.rope_theta = field_or(json, "rope_theta", config.rope_theta, source);
  auto scaling = json.value("rope_scaling", nlohmann::json());
  const auto both = json.find("rope_parameters");
  if (both != json.end() && !both->is_null()) {
    if (!both->is_object()) throw FormatError(source + ": field 'rope_parameters' is not a JSON object");
    scaling = *both;
    config.rope_theta = field_or(scaling, "rope_theta", config.rope_theta, source);
    scaling.erase("rope_theta");
  }
  if (scaling.is_null()) return;
  if (!scaling.is_object()) throw FormatError(source + ": field 'rope_scaling' is neither null nor a JSON object");
  const auto type = field_or(scaling, "rope_type", field_or(scaling, "type", std::string("default"), source), source);
  if (type != "default") config.rope_scaling = json_text(scaling);
}

}  // namespace

ModelConfig llama_from_json(const nlohmann::json& json, const std::string& source) {
  ModelConfig config;
  config.architecture = Architecture::llama;
  config.num_layers = field<std::int64_t>(json, "num_hidden_layers", source);
  config.num_heads = field<std::int64_t>(json, "num_attention_heads", source);
  config.embed_size = field<std::int64_t>(json, "hidden_size", source);
  config.ffn_hidden_size = field<std::int64_t>(json, "intermediate_size", source);
  config.vocab_size = field<std::int64_t>(json, "vocab_size", source);
  config.block_size = field_or<std::int64_t>(json, "max_position_embeddings", 2048, source);
  config.layer_norm_eps = field_or(json, "rms_norm_eps", 1e-6, source);
  config.num_kv_heads = field_or(json, "num_key_value_heads", std::int64_t{0}, source);
  config.head_size = field_or(json, "head_dim", std::int64_t{0}, source);
  config.tie_word_embeddings = field_or(json, "tie_word_embeddings", false, source);
  config.attention_bias = field_or(json, "attention_bias", false, source);
  config.mlp_bias = field_or(json, "mlp_bias", false, source);
  read_rope(json, source, config);
  const auto activation = field_or(json, "hidden_act", std::string("silu"), source);
  if (activation != "silu") {
    throw FormatError(source + ": hidden_act '" + activation + "' is not supported; supported: silu");
  }
  validate(config, source);
  return config;
}

nlohmann::json llama_to_json(const ModelConfig& config) {
  const auto scaling =
      config.rope_scaling.empty() ? nlohmann::json() : parse_json_or_discard(config.rope_scaling, "rope_scaling");
  return {{"model_type", "llama"},
          {"num_hidden_layers", config.num_layers},
          {"num_attention_heads", config.num_heads},
          {"num_key_value_heads", config.kv_heads()},
          {"head_dim", config.head_width()},
          {"hidden_size", config.embed_size},
          {"intermediate_size", config.ffn_hidden_size},
          {"vocab_size", config.vocab_size},
          {"max_position_embeddings", config.block_size},
          {"rms_norm_eps", config.layer_norm_eps},
          {"rope_theta", config.rope_theta},
          {"rope_scaling", scaling},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"attention_bias", config.attention_bias},
          {"mlp_bias", config.mlp_bias},
          {"hidden_act", "silu"}};
}

std::vector<ParameterSpec> llama_parameter_table(const ModelConfig& config) {
  const auto d = config.embed_size, f = config.ffn_hidden_size;
  const auto queries = config.num_heads * config.head_width(), keys = config.kv_heads() * config.head_width();
  std::vector<ParameterSpec> table;
  table.push_back({"model.embed_tokens.weight", {config.vocab_size, d}, Init::normal, 0.02, true, -1, true});
  for (int i = 0; i < config.num_layers; ++i) {
    const auto prefix = "model.layers." + std::to_string(i) + ".";
    const auto linear = [&](const char* name, std::int64_t rows, std::int64_t columns, bool bias, int same_input = 0) {
      table.push_back({prefix + name + ".weight", {rows, columns}, Init::normal, 0.02, true, i});
      if (same_input != 0) table.back().same_input = 2 * i + same_input;
      if (bias) table.push_back({prefix + name + ".bias", {rows}, Init::zeros, 0.0, false, i});
    };
    const auto norm = [&](const char* name) {
      table.push_back({prefix + name + ".weight", {d}, Init::ones, 0.0, false, i});
    };
    linear("self_attn.q_proj", queries, d, config.attention_bias, 1);
    linear("self_attn.k_proj", keys, d, config.attention_bias, 1);
    linear("self_attn.v_proj", keys, d, config.attention_bias, 1);
    linear("self_attn.o_proj", d, queries, config.attention_bias);
    linear("mlp.gate_proj", f, d, config.mlp_bias, 2);
    linear("mlp.up_proj", f, d, config.mlp_bias, 2);
    linear("mlp.down_proj", d, f, config.mlp_bias);
    norm("input_layernorm");
    norm("post_attention_layernorm");
  }
  table.push_back({"model.norm.weight", {d}, Init::ones, 0.0, false, -1});
  if (!config.tie_word_embeddings) {
    table.push_back({"lm_head.weight", {config.vocab_size, d}, Init::normal, 0.02, true, -1});
  }
  return table;
}

}  // namespace fsdp::config_detail
