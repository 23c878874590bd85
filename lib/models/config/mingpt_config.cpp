// minGPT (Karpathy): its config.json, that of GPT-2 in transformers, which computes the same, and the parameters.
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/text/json_text.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp::config_detail {
namespace {

constexpr const char* kGpt2 = "gpt2";

ModelConfig read_mingpt(const nlohmann::json& json, const std::string& source) {
  ModelConfig config;
  config.num_layers = field<std::int64_t>(json, "n_layer", source);
  config.num_heads = field<std::int64_t>(json, "n_head", source);
  config.embed_size = field<std::int64_t>(json, "n_embd", source);
  validate(config, source);  // before sizes are multiplied
  config.ffn_hidden_size =
      json.contains("n_hidden") ? field<std::int64_t>(json, "n_hidden", source) : 4 * config.embed_size;
  config.vocab_size = field<std::int64_t>(json, "vocab_size", source);
  config.block_size = field<std::int64_t>(json, "block_size", source);
  if (json.contains("dropout")) config.dropout = field<double>(json, "dropout", source);
  if (json.contains("layer_norm_eps")) config.layer_norm_eps = field<double>(json, "layer_norm_eps", source);
  if (!field_or(json, "bias", true, source)) throw FormatError(source + ": bias = false is not supported");
  if (!field_or(json, "tied_head", true, source)) throw FormatError(source + ": tied_head = false is not supported");
  if (field_or(json, "gelu", std::string("tanh"), source) != "tanh")
    throw FormatError(source + ": only gelu = tanh is supported");
  validate(config, source);
  return config;
}

ModelConfig read_gpt2(const nlohmann::json& json, const std::string& source) {
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
  validate(config, source);  // before sizes are multiplied
  config.ffn_hidden_size = field_or(json, "n_inner", 4 * config.embed_size, source);
  validate(config, source);
  return config;
}

ModelConfig read_either(const Family& family, const nlohmann::json& json, const std::string& source) {
  return family.type == kGpt2 ? read_gpt2(json, source) : read_mingpt(json, source);
}

nlohmann::json write_mingpt(const ModelConfig& config) {
  return {{"model_type", "mingpt"},
          {"n_layer", config.num_layers},
          {"n_head", config.num_heads},
          {"n_embd", config.embed_size},
          {"n_hidden", config.ffn_hidden_size},
          {"vocab_size", config.vocab_size},
          {"block_size", config.block_size},
          {"bias", true},
          {"dropout", config.dropout},
          {"layer_norm_eps", config.layer_norm_eps},
          {"gelu", "tanh"},
          {"tied_head", true}};
}

nlohmann::json write_gpt2(const ModelConfig& config) {
  nlohmann::json json = {{"model_type", kGpt2},
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

std::vector<ParameterSpec> mingpt_parameters(const ModelConfig& config) {
  const auto d = config.embed_size;
  const auto f = config.ffn_hidden_size;
  // minGPT scales the projections into the residual stream so that its variance does not grow with depth.
  const double residual_std = 0.02 / std::sqrt(2.0 * static_cast<double>(config.num_layers));
  std::vector<ParameterSpec> table;
  table.push_back({"transformer.wte.weight", {config.vocab_size, d}, Init::normal, 0.02, true, -1, true});
  table.push_back({"transformer.wpe.weight", {config.block_size, d}, Init::normal, 0.02, true, -1, true});
  for (int i = 0; i < config.num_layers; ++i) {
    const std::string prefix = "transformer.h." + std::to_string(i) + ".";
    const auto vector = [&](const char* name, std::int64_t n, Init init) {
      table.push_back({prefix + name, {n}, init, 0.0, false, i});
    };
    const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t columns, double std) {
      table.push_back({prefix + name, {rows, columns}, Init::normal, std, true, i});
    };
    vector("ln_1.weight", d, Init::ones);
    vector("ln_1.bias", d, Init::zeros);
    matrix("attn.c_attn.weight", 3 * d, d, 0.02);
    vector("attn.c_attn.bias", 3 * d, Init::zeros);
    matrix("attn.c_proj.weight", d, d, residual_std);
    vector("attn.c_proj.bias", d, Init::zeros);
    vector("ln_2.weight", d, Init::ones);
    vector("ln_2.bias", d, Init::zeros);
    matrix("mlp.c_fc.weight", f, d, 0.02);
    vector("mlp.c_fc.bias", f, Init::zeros);
    matrix("mlp.c_proj.weight", d, f, residual_std);
    vector("mlp.c_proj.bias", d, Init::zeros);
  }
  table.push_back({"transformer.ln_f.weight", {d}, Init::ones, 0.0, false, -1});
  table.push_back({"transformer.ln_f.bias", {d}, Init::zeros, 0.0, false, -1});
  return table;
}

std::optional<ModelConfig> mingpt_of_names(const HasName& has) {
  if (!has("transformer.wte.weight")) return std::nullopt;
  ModelConfig config;
  config.num_layers = count_layers(has, "transformer.h.", ".ln_1.weight");
  return config;
}

}  // namespace

const Kind& mingpt_kind() {
  static constexpr Kind kind{.architecture = Architecture::mingpt,
                             .sizes = {"n_layer", "n_head", "n_embd", "n_hidden (GPT-2: n_inner)", "config.vocab_size",
                                       "config.block_size (GPT-2: n_positions)"},
                             .has_rotary = false,
                             .has_key_heads = false,
                             .read = read_either,
                             .write = write_mingpt,
                             .write_for_transformers = write_gpt2,
                             .parameters = mingpt_parameters,
                             .of_names = mingpt_of_names};
  return kind;
}

}  // namespace fsdp::config_detail
