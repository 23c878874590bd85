// Falcon (Almazrouei et al., arXiv:2311.16867): config.json and parameters, with transformers' names and order.
#include <nlohmann/json.hpp>

#include "lib/base/text/json_text.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp::config_detail {
namespace {

class FalconReader {
 public:
  FalconReader(const Family& family, const nlohmann::json& json, const std::string& source)
      : family_(family), json_(json), source_(source) {
    config_.architecture = Architecture::falcon;
    config_.traits = family.traits;
    config_.source = source;
  }

  ModelConfig read() {
    config_.num_layers = field<std::int64_t>(json_, "num_hidden_layers", source_);
    config_.num_heads = field<std::int64_t>(json_, "num_attention_heads", source_);
    config_.embed_size = field<std::int64_t>(json_, "hidden_size", source_);
    config_.vocab_size = field<std::int64_t>(json_, "vocab_size", source_);
    config_.block_size = get<std::int64_t>("max_position_embeddings", family_.positions);
    validate(config_, source_);  // before sizes are multiplied
    config_.ffn_hidden_size = get<std::int64_t>("ffn_hidden_size", 4 * config_.embed_size);
    config_.layer_norm_eps = get("layer_norm_epsilon", family_.eps);
    config_.tie_word_embeddings = get("tie_word_embeddings", family_.tied);
    config_.attention_bias = config_.mlp_bias = get("bias", false);
    read_block();
    read_rope();
    refuse_what_is_not_built();
    validate(config_, source_);
    return config_;
  }

 private:
  template <typename T>
  T get(const char* name, T otherwise) const {
    return field_or(json_, name, otherwise, source_);
  }

  void require(bool good, const char* name, const std::string& wanted) const {
    if (good) return;
    const auto shown = json_.contains(name) ? json_text(json_.at(name)) : std::string("absent");
    throw FormatError(source_ + ": field '" + name + "' is " + shown + "; for model_type falcon " + wanted);
  }

  /// new_decoder_architecture decides about the heads of keys alone; multi_query counts without it only.
  void read_block() {
    auto& traits = config_.traits;
    traits.new_decoder = get("new_decoder_architecture", false);
    traits.alibi = get("alibi", false);
    const bool parallel = get("parallel_attn", true), one_head = get("multi_query", true);
    require(parallel || !traits.new_decoder, "parallel_attn", "true is supported with new_decoder_architecture");
    const auto norms = get<std::int64_t>("num_ln_in_parallel_attn", traits.new_decoder ? 2 : 1);
    require(!parallel || norms == 1 || (norms == 2 && traits.new_decoder), "num_ln_in_parallel_attn",
            "1 is supported, and 2 with new_decoder_architecture");
    traits.parallel_norms = parallel ? static_cast<int>(norms) : 0;
    config_.num_kv_heads = one_head ? 1 : config_.num_heads;
    if (traits.new_decoder) config_.num_kv_heads = get("num_kv_heads", config_.num_heads);
    require(config_.num_kv_heads > 0, "num_kv_heads", "it must be at least 1");
  }

  void read_rope() {
    const auto rope = config_detail::read_rope(family_, json_, source_);
    require(rope.fraction == 1, "partial_rotary_factor", "it must be 1");
    config_.rope_theta = rope.theta;
    if (!rope.scaling.is_null()) config_.rope_scaling = json_text(rope.scaling);
  }

  /// transformers ignores unknown fields; here that could mean training a different model.
  void refuse_what_is_not_built() const {
    require(get("activation", std::string("gelu")) == "gelu", "activation", "gelu is supported");
    for (const auto* name : {"attention_dropout", "hidden_dropout"})
      require(get(name, 0.0) == 0, name, "0 is supported");
    for (const auto* name : {"head_dim", "num_experts", "sliding_window", "clip_qkv"})
      require(!json_.contains(name) || json_.at(name).is_null(), name, "there is none");
  }

  const Family& family_;
  const nlohmann::json& json_;
  const std::string& source_;
  ModelConfig config_;
};

ModelConfig read_falcon(const Family& family, const nlohmann::json& json, const std::string& source) {
  return FalconReader(family, json, source).read();
}

nlohmann::json write_falcon(const ModelConfig& config) {
  const auto& traits = config.traits;
  nlohmann::json json{{"model_type", traits.family},
                      {"num_hidden_layers", config.num_layers},
                      {"num_attention_heads", config.num_heads},
                      {"num_kv_heads", config.kv_heads()},
                      {"hidden_size", config.embed_size},
                      {"ffn_hidden_size", config.ffn_hidden_size},
                      {"vocab_size", config.vocab_size},
                      {"max_position_embeddings", config.block_size},
                      {"layer_norm_epsilon", config.layer_norm_eps},
                      {"tie_word_embeddings", config.tie_word_embeddings},
                      {"activation", "gelu"},
                      {"bias", config.mlp_bias},
                      {"alibi", traits.alibi},
                      {"parallel_attn", traits.parallel_norms > 0},
                      {"multi_query", config.kv_heads() == 1},
                      {"new_decoder_architecture", traits.new_decoder},
                      {"hidden_dropout", 0.0},
                      {"attention_dropout", 0.0}};
  if (traits.new_decoder) json["num_ln_in_parallel_attn"] = traits.parallel_norms;
  const auto scaling =
      config.rope_scaling.empty() ? nlohmann::json() : parse_json_or_discard(config.rope_scaling, "rope_scaling");
  write_rope(*find_family(traits.family), {config.rope_theta, 0, 1, scaling}, json);
  return json;
}

std::vector<ParameterSpec> falcon_parameters(const ModelConfig& config) {
  const auto d = config.embed_size, f = config.ffn_hidden_size;
  const auto rows = (config.num_heads + 2 * config.kv_heads()) * config.head_width();
  std::vector<ParameterSpec> table;
  const auto matrix = [&](const std::string& name, std::int64_t out, std::int64_t in, bool bias, int block) {
    table.push_back({name + ".weight", {out, in}, Init::normal, 0.02, true, block});
    if (bias) table.push_back({name + ".bias", {out}, Init::zeros, 0.0, false, block});
  };
  const auto norm = [&](const std::string& name, int block) {
    table.push_back({name + ".weight", {d}, Init::ones, 0.0, false, block});
    table.push_back({name + ".bias", {d}, Init::zeros, 0.0, false, block});
  };
  table.push_back({"transformer.word_embeddings.weight", {config.vocab_size, d}, Init::normal, 0.02, true, -1, true});
  for (int i = 0; i < config.num_layers; ++i) {
    const std::string prefix = "transformer.h." + std::to_string(i) + ".";
    matrix(prefix + "self_attention.query_key_value", rows, d, config.attention_bias, i);
    matrix(prefix + "self_attention.dense", d, config.num_heads * config.head_width(), config.attention_bias, i);
    matrix(prefix + "mlp.dense_h_to_4h", f, d, config.mlp_bias, i);
    matrix(prefix + "mlp.dense_4h_to_h", d, f, config.mlp_bias, i);
    if (config.traits.parallel_norms == 2) {
      norm(prefix + "ln_attn", i);
      norm(prefix + "ln_mlp", i);
      continue;
    }
    if (config.traits.parallel_norms == 0) norm(prefix + "post_attention_layernorm", i);
    norm(prefix + "input_layernorm", i);
  }
  norm("transformer.ln_f", -1);
  if (!config.tie_word_embeddings) matrix("lm_head", config.vocab_size, d, false, -1);
  return table;
}

std::optional<ModelConfig> falcon_of_names(const HasName& has_name) {
  if (!has_name("transformer.word_embeddings.weight")) return std::nullopt;
  const auto has = [&](const char* member) { return has_name("transformer.h.0." + std::string(member)); };
  ModelConfig config;
  config.architecture = Architecture::falcon;
  config.num_layers = count_layers(has_name, "transformer.h.", ".self_attention.query_key_value.weight");
  config.attention_bias = has("self_attention.dense.bias");
  config.mlp_bias = has("mlp.dense_h_to_4h.bias");
  config.traits.parallel_norms = has("ln_attn.weight") ? 2 : has("post_attention_layernorm.weight") ? 0 : 1;
  return config;
}

}  // namespace

const Kind& falcon_kind() {
  static constexpr Kind kind{.architecture = Architecture::falcon,
                             .read = read_falcon,
                             .write = write_falcon,
                             .parameters = falcon_parameters,
                             .of_names = falcon_of_names};
  return kind;
}

}  // namespace fsdp::config_detail
