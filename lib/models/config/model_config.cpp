#include "lib/models/config/model_config.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp {

namespace {

using config_detail::field;

/// Rejects absurd sizes before they exhaust memory.
void require_in(std::int64_t value, std::int64_t most, const char* what) {
  if (value < 1) throw UsageError(std::string(what) + " is " + std::to_string(value) + ", it must be at least 1");
  if (value > most) {
    throw UsageError(std::string(what) + " is " + std::to_string(value) + ", it can be at most " +
                     std::to_string(most));
  }
}

}  // namespace

void ModelConfig::validate() const {
  require_in(num_layers, 1 << 14, "--num-layers");
  require_in(num_heads, 1 << 14, "--num-heads");
  require_in(embed_size, 1 << 20, "--embed-size");
  require_in(ffn_hidden_size, 1 << 24, "--ffn-hidden-size");
  require_in(vocab_size, 1 << 24, "--vocab-size");
  require_in(block_size, 1 << 24, "--seq-len");
  if (architecture == Architecture::llama) {
    require_in(kv_heads(), 1 << 14, "num_key_value_heads");
    if (num_heads % kv_heads() != 0) {
      throw UsageError("num_attention_heads " + std::to_string(num_heads) +
                       " is not divisible by num_key_value_heads " + std::to_string(kv_heads()) +
                       ": every head of keys serves equally many heads of queries");
    }
    if (head_size != 0) require_in(head_size, 1 << 16, "head_dim");
    require_in(num_heads * head_width(), 1 << 22, "num_attention_heads times head_dim");
  }
  if (head_size == 0 && embed_size % num_heads != 0) {
    throw UsageError("--embed-size " + std::to_string(embed_size) + " is not divisible by --num-heads " +
                     std::to_string(num_heads) + ": every head needs the same width");
  }
  if (dropout < 0 || dropout >= 1) {
    throw UsageError("--dropout is " + std::to_string(dropout) + ", it must be in [0, 1)");
  }
}

void config_detail::validate(const ModelConfig& config, const std::string& source) {
  try {
    config.validate();
  } catch (const UsageError& error) {
    throw FormatError(source + ": " + error.what());
  }
}

ModelConfig model_config_from_json(const nlohmann::json& json, const std::string& source) {
  if (!json.is_object()) throw FormatError(source + ": a JSON object was expected");
  const auto type = config_detail::field_or(json, "model_type", std::string("mingpt"), source);
  if (const auto* family = config_detail::find_family(type))
    return config_detail::decoder_from_json(*family, json, source);
  if (type == "gpt2") return config_detail::gpt2_from_json(json, source);
  if (type != "mingpt") {
    std::string known = "mingpt, gpt2";
    for (const auto& family : config_detail::families()) known += ", " + std::string(family.type);
    if (json.contains("text_config"))
      throw FormatError(source + ": model_type '" + type + "' has its language model in text_config, which is not " +
                        "supported: save that model by itself, as one of " + known);
    throw FormatError(source + ": model_type '" + type + "' is not supported; supported: " + known);
  }
  ModelConfig config;
  config.num_layers = field<std::int64_t>(json, "n_layer", source);
  config.num_heads = field<std::int64_t>(json, "n_head", source);
  config.embed_size = field<std::int64_t>(json, "n_embd", source);
  config_detail::validate(config, source);  // before sizes are multiplied
  config.ffn_hidden_size =
      json.contains("n_hidden") ? field<std::int64_t>(json, "n_hidden", source) : 4 * config.embed_size;
  config.vocab_size = field<std::int64_t>(json, "vocab_size", source);
  config.block_size = field<std::int64_t>(json, "block_size", source);
  if (json.contains("dropout")) config.dropout = field<double>(json, "dropout", source);
  if (json.contains("layer_norm_eps")) config.layer_norm_eps = field<double>(json, "layer_norm_eps", source);
  using config_detail::field_or;
  if (!field_or(json, "bias", true, source)) throw FormatError(source + ": bias = false is not supported");
  if (!field_or(json, "tied_head", true, source)) throw FormatError(source + ": tied_head = false is not supported");
  if (field_or(json, "gelu", std::string("tanh"), source) != "tanh")
    throw FormatError(source + ": only gelu = tanh is supported");
  config_detail::validate(config, source);
  return config;
}

nlohmann::json model_config_to_json(const ModelConfig& config) {
  if (config.architecture == Architecture::llama) return config_detail::decoder_to_json(config);
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

ModelConfig read_model_config(const std::filesystem::path& directory_or_file) {
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(directory_or_file, ignored);
  const auto path = is_file ? directory_or_file : directory_or_file / "config.json";
  const auto text = read_text_file(path, 1u << 20);
  try {
    return model_config_from_json(parse_json(text, path.string()), path.string());
  } catch (const nlohmann::json::parse_error& error) {
    throw FormatError(path.string(), error.byte, "not valid JSON");
  } catch (const nlohmann::json::exception& error) {  // e.g. 1e999, which exceeds a double
    throw FormatError(path.string() + ": is no configuration of a model: " + error.what());
  }
}

std::vector<ParameterSpec> parameter_table(const ModelConfig& config) {
  if (config.architecture == Architecture::llama) return config_detail::decoder_parameter_table(config);
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

std::vector<std::pair<std::string, std::string>> tied_names(const ModelConfig& config) {
  if (config.architecture == Architecture::mingpt) return {{"lm_head.weight", "transformer.wte.weight"}};
  if (config.tie_word_embeddings) return {{"lm_head.weight", "model.embed_tokens.weight"}};
  return {};
}

std::string tied_name_of(const ModelConfig& config, const std::string& name) {
  for (const auto& [alias, original] : tied_names(config))
    if (original == name) return alias;
  return "";
}

std::int64_t num_parameters(const std::vector<ParameterSpec>& table) {
  std::int64_t total = 0;
  for (const auto& spec : table) {
    if (spec.stands_for >= 0) {
      total += spec.stands_for;
      continue;
    }
    std::int64_t n = 1;
    for (const auto size : spec.shape) n *= size;
    total += n;
  }
  return total;
}

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
  config_detail::validate(config, source);  // before sizes are multiplied
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
  field<std::string>(json, "model_type", source);  // optional in our own files, required in Hugging Face's
  return model_config_from_json(json, source);
}

}  // namespace fsdp
