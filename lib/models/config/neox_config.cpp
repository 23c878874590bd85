// GPT-NeoX (Black et al., arXiv:2204.06745), which Pythia is: config.json and parameters, with transformers' names and
// order.
#include <nlohmann/json.hpp>

#include "lib/base/json_text.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp::config_detail {
namespace {

ModelConfig read_neox(const Family& family, const nlohmann::json& json, const std::string& source) {
  const auto refuse_unless = [&](bool good, const char* name, const char* wanted) {
    if (good) return;
    throw FormatError(source + ": field '" + name + "' is " + json_text(json.value(name, nlohmann::json())) +
                      "; for model_type gpt_neox " + wanted);
  };
  ModelConfig config;
  config.architecture = Architecture::neox;
  config.traits = family.traits;
  config.source = source;
  config.num_layers = field<std::int64_t>(json, "num_hidden_layers", source);
  config.num_heads = field<std::int64_t>(json, "num_attention_heads", source);
  config.embed_size = field<std::int64_t>(json, "hidden_size", source);
  config.ffn_hidden_size = field<std::int64_t>(json, "intermediate_size", source);
  config.vocab_size = field<std::int64_t>(json, "vocab_size", source);
  config.block_size = field_or<std::int64_t>(json, "max_position_embeddings", family.positions, source);
  config.layer_norm_eps = field_or(json, "layer_norm_eps", family.eps, source);
  config.tie_word_embeddings = field_or(json, "tie_word_embeddings", family.tied, source);
  config.attention_bias = config.mlp_bias = true;
  const auto rope = json.value("rope_parameters", nlohmann::json::object());
  config.rope_theta =
      field_or(rope, "rope_theta", field_or(json, "rotary_emb_base", family.rope_theta, source), source);
  config.traits.rotary_fraction =
      field_or(rope, "partial_rotary_factor", field_or(json, "rotary_pct", 0.25, source), source);
  config.traits.parallel_norms = field_or(json, "use_parallel_residual", true, source) ? 2 : 0;
  refuse_unless(field_or(json, "hidden_act", std::string("gelu"), source) == "gelu", "hidden_act", "gelu is supported");
  refuse_unless(field_or(json, "attention_bias", true, source), "attention_bias", "true is supported");
  refuse_unless(json.value("rope_scaling", nlohmann::json()).is_null(), "rope_scaling", "there is none");
  refuse_unless(rope.value("rope_type", "default") == "default", "rope_parameters", "the type default is supported");
  for (const auto* name : {"attention_dropout", "hidden_dropout"})
    refuse_unless(field_or(json, name, 0.0, source) == 0, name, "0 is supported");
  validate(config, source);
  return config;
}

nlohmann::json write_neox(const ModelConfig& config) {
  return {{"model_type", "gpt_neox"},
          {"num_hidden_layers", config.num_layers},
          {"num_attention_heads", config.num_heads},
          {"hidden_size", config.embed_size},
          {"intermediate_size", config.ffn_hidden_size},
          {"vocab_size", config.vocab_size},
          {"max_position_embeddings", config.block_size},
          {"layer_norm_eps", config.layer_norm_eps},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"hidden_act", "gelu"},
          {"rotary_emb_base", config.rope_theta},
          {"rotary_pct", config.traits.rotary_fraction},
          {"use_parallel_residual", config.traits.parallel_norms > 0}};
}

std::vector<ParameterSpec> neox_parameters(const ModelConfig& config) {
  const auto d = config.embed_size, f = config.ffn_hidden_size;
  std::vector<ParameterSpec> table;
  const auto matrix = [&](const std::string& name, std::int64_t out, std::int64_t in, int block) {
    table.push_back({name + ".weight", {out, in}, Init::normal, 0.02, true, block});
    table.push_back({name + ".bias", {out}, Init::zeros, 0.0, false, block});
  };
  const auto norm = [&](const std::string& name, int block) {
    table.push_back({name + ".weight", {d}, Init::ones, 0.0, false, block});
    table.push_back({name + ".bias", {d}, Init::zeros, 0.0, false, block});
  };
  table.push_back({"gpt_neox.embed_in.weight", {config.vocab_size, d}, Init::normal, 0.02, true, -1, true});
  for (int i = 0; i < config.num_layers; ++i) {
    const std::string prefix = "gpt_neox.layers." + std::to_string(i) + ".";
    norm(prefix + "input_layernorm", i);
    norm(prefix + "post_attention_layernorm", i);
    matrix(prefix + "attention.query_key_value", 3 * d, d, i);
    matrix(prefix + "attention.dense", d, d, i);
    matrix(prefix + "mlp.dense_h_to_4h", f, d, i);
    matrix(prefix + "mlp.dense_4h_to_h", d, f, i);
  }
  norm("gpt_neox.final_layer_norm", -1);
  if (!config.tie_word_embeddings)
    table.push_back({"lm_head.weight", {config.vocab_size, d}, Init::normal, 0.02, true, -1});
  return table;
}

std::optional<ModelConfig> neox_of_names(const HasName& has) {
  if (!has("gpt_neox.embed_in.weight")) return std::nullopt;
  ModelConfig config;
  config.architecture = Architecture::neox;
  config.num_layers = count_layers(has, "gpt_neox.layers.", ".input_layernorm.weight");
  return config;
}

}  // namespace

const Kind& neox_kind() {
  static constexpr Kind kind{.architecture = Architecture::neox,
                             .has_rotary = false,  // not in the usual fields
                             .read = read_neox,
                             .write = write_neox,
                             .parameters = neox_parameters,
                             .of_names = neox_of_names};
  return kind;
}

}  // namespace fsdp::config_detail
