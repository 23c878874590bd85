// Llama's kind of decoders: config.json, and the parameters with transformers' names and in transformers' order.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/text/json_text.hpp"
#include "lib/models/config/model_config_fields.hpp"

namespace fsdp::config_detail {
namespace {

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";

class Reader {
 public:
  Reader(const Family& family, const nlohmann::json& json, const std::string& source)
      : family_(family), json_(json), source_(source) {
    config_.architecture = Architecture::llama;
    config_.traits = family.traits;
    config_.source = source;
  }

  ModelConfig read() {
    read_sizes();
    read_norms_and_biases();
    read_activation();
    read_rope();
    validate(config_, source_);
    read_windows();
    read_scores();
    refuse_what_is_not_built();
    return config_;
  }

 private:
  bool has(const char* name) const {
    const auto found = json_.find(name);
    return found != json_.end() && !found->is_null();
  }
  bool is_null(const char* name) const { return json_.contains(name) && json_.at(name).is_null(); }
  template <typename T>
  T get(const char* name, T otherwise) const {
    return field_or(json_, name, otherwise, source_);
  }
  [[noreturn]] void refuse(const char* name, const std::string& wanted) const {
    const auto shown = json_.contains(name) ? json_text(json_.at(name)) : std::string("absent");
    throw FormatError(source_ + ": field '" + name + "' is " + shown + "; for model_type " + config_.traits.family +
                      " " + wanted);
  }

  void read_sizes() {
    config_.num_layers = field<std::int64_t>(json_, "num_hidden_layers", source_);
    config_.num_heads = field<std::int64_t>(json_, "num_attention_heads", source_);
    config_.embed_size = field<std::int64_t>(json_, "hidden_size", source_);
    config_.ffn_hidden_size = field<std::int64_t>(json_, "intermediate_size", source_);
    config_.vocab_size = field<std::int64_t>(json_, "vocab_size", source_);
    config_.block_size = get<std::int64_t>("max_position_embeddings", family_.positions);
    const bool has_kv_heads = json_.contains("num_key_value_heads");  // null: as many as query heads
    config_.num_kv_heads = has_kv_heads ? get<std::int64_t>("num_key_value_heads", 0) : family_.kv_heads;
    if (family_.head_size != 0 && is_null("head_dim")) refuse("head_dim", "it must be a number");
    config_.head_size = get<std::int64_t>("head_dim", family_.head_size);
    config_.tie_word_embeddings = get("tie_word_embeddings", family_.tied);
    config_.traits.padding_id = is_null("pad_token_id") ? -1 : get<std::int64_t>("pad_token_id", family_.padding_id);
    auto& padding = config_.traits.padding_id;
    // torch.nn.Embedding counts negative indices from the end.
    if (padding < 0 && has("pad_token_id")) padding += config_.vocab_size;
    if (padding < 0 || padding >= config_.vocab_size) padding = -1;
  }

  void read_norms_and_biases() {
    config_.layer_norm_eps = get("rms_norm_eps", family_.eps);
    config_.attention_bias = get("attention_bias", false);
    if (config_.attention_bias && !family_.has_attention_bias)
      refuse("attention_bias", "transformers has no such biases");
    config_.mlp_bias = get("mlp_bias", false);
    if (config_.mlp_bias && !family_.has_mlp_bias) refuse("mlp_bias", "transformers has no such biases");
  }

  /// Gemma's field is hidden_act, and transformers uses GELU's tanh form even if the field says gelu; Gemma 2 and 3 use
  /// hidden_activation.
  void read_activation() const {
    const bool newer = family_.has_softcaps;
    const auto* name = newer ? "hidden_activation" : "hidden_act";
    if (newer && is_null(name)) refuse(name, "it must be gelu_pytorch_tanh");
    const auto activation = get(name, std::string(family_.traits.gelu ? "gelu_pytorch_tanh" : "silu"));
    const bool good = family_.traits.gelu ? activation == "gelu_pytorch_tanh" || (!newer && activation == "gelu")
                                          : activation == "silu";
    if (!good) refuse(name, family_.traits.gelu ? "gelu_pytorch_tanh is supported" : "silu is supported");
  }

  void read_rope() {
    auto& traits = config_.traits;
    const auto rope = config_detail::read_rope(family_, json_, source_);
    config_.rope_theta = rope.theta;
    traits.local_rope_theta = rope.local_theta;
    traits.rotary_fraction = rope.fraction;
    if (!(rope.fraction > 0 && rope.fraction <= 1) || (rope.fraction != 1 && !traits.fused_projections))
      throw FormatError(fmt::format("{}: partial_rotary_factor is {}; for model_type {} it must be {}", source_,
                                    rope.fraction, traits.family,
                                    traits.fused_projections ? "above 0 and at most 1" : "1"));
    if (!rope.scaling.is_null()) config_.rope_scaling = json_text(rope.scaling);
  }

  std::vector<bool> listed_layers() const {
    const auto& list = json_.at("layer_types");
    std::vector<bool> sliding;
    for (const auto& type : list) {
      if (!list.is_array() || (type != kSliding && type != kFull))
        refuse("layer_types", std::string("each must be ") + kSliding + " or " + kFull);
      sliding.push_back(type == kSliding);
    }
    if (std::ssize(sliding) != config_.num_layers) refuse("layer_types", "it must have num_hidden_layers of them");
    return sliding;
  }

  /// Uses layer_types where the window depends on the layer. For other families, layer_types must agree with the fixed
  /// layout.
  void read_windows() {
    auto& traits = config_.traits;
    const auto listed = has("layer_types") ? listed_layers() : std::vector<bool>();
    const auto none_of_these_slides = [&] {
      for (const bool slides : listed)
        if (slides) refuse("layer_types", "no layer slides");
    };
    if (family_.windows == Windows::none) {
      if (has("sliding_window")) refuse("sliding_window", "there is none");
      return none_of_these_slides();
    }
    traits.window = is_null("sliding_window") ? 0 : get("sliding_window", family_.window);
    const bool always = family_.windows == Windows::alternating || family_.windows == Windows::pattern;
    if (traits.window < 0 || (always && traits.window == 0)) refuse("sliding_window", "it must be a number above 0");
    if (family_.windows == Windows::from_layer && !get("use_sliding_window", false)) traits.window = 0;
    if (traits.window == 0) return none_of_these_slides();
    traits.sliding = listed.empty() || family_.windows == Windows::all ? usual_layers() : listed;
  }

  std::vector<bool> usual_layers() const {
    const auto first = get<std::int64_t>("max_window_layers", 28);
    const auto period = get<std::int64_t>("sliding_window_pattern", 6);
    if (period < 1) refuse("sliding_window_pattern", "it must be at least 1");
    std::vector<bool> sliding;
    for (std::int64_t i = 0; i < config_.num_layers; ++i) {
      sliding.push_back(family_.windows == Windows::all || family_.windows == Windows::all_or_listed ||
                        (family_.windows == Windows::from_layer && i >= first) ||
                        (family_.windows == Windows::alternating && i % 2 == 0) ||
                        (family_.windows == Windows::pattern && (i + 1) % period != 0));
    }
    return sliding;
  }

  double positive_or_off(const char* name, double otherwise) const {
    if (is_null(name)) return 0;
    const auto found = get(name, otherwise);
    if (json_.contains(name) && !(found > 0 && std::isfinite(found)))
      refuse(name, "it must be a number above 0, or null");
    return found;
  }

  void read_scores() {
    if (!family_.has_softcaps) return;
    auto& traits = config_.traits;
    const bool caps_scores = family_.traits.attention_softcap > 0;  // Gemma 3 reads the field but does not use it
    if (caps_scores) traits.attention_softcap = positive_or_off("attn_logit_softcapping", traits.attention_softcap);
    traits.logit_softcap = positive_or_off("final_logit_softcapping", traits.logit_softcap);
    traits.query_scalar = get("query_pre_attn_scalar", traits.query_scalar);
    if (!(traits.query_scalar > 0 && std::isfinite(traits.query_scalar)))
      refuse("query_pre_attn_scalar", "it must be a number above 0");
  }

  /// transformers ignores unknown fields; here that could mean training a different model.
  void refuse_what_is_not_built() const {
    if (!family_.has_softcaps) {
      for (const auto* name : {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"})
        if (has(name)) refuse(name, "there is none");
    }
    for (const auto* name : {"use_bidirectional_attention", "add_cross_attention", "use_mrope", "use_qkv_bias"})
      if (has(name) && json_.at(name) != false) refuse(name, "false is supported");
    for (const auto* name : {"clip_qkv", "num_experts", "num_local_experts", "alibi_bias_max"})
      if (has(name) && json_.at(name) != 0) refuse(name, "there is none");
    for (const auto* name : {"attention_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout"})
      if (has(name) && json_.at(name) != 0) refuse(name, "0 is supported");
    for (const auto* name : {"logits_scaling", "logit_scale", "residual_multiplier", "embedding_multiplier"})
      if (has(name) && json_.at(name) != 1) refuse(name, "1 is supported");
  }

  const Family& family_;
  const nlohmann::json& json_;
  const std::string& source_;
  ModelConfig config_;
};

ModelConfig read_llama(const Family& family, const nlohmann::json& json, const std::string& source) {
  return Reader(family, json, source).read();
}

nlohmann::json write_llama(const ModelConfig& config) {
  const auto& traits = config.traits;
  const auto& family = *find_family(traits.family);
  const auto scaling =
      config.rope_scaling.empty() ? nlohmann::json() : parse_json_or_discard(config.rope_scaling, "rope_scaling");
  nlohmann::json json{{"model_type", traits.family},
                      {"num_hidden_layers", config.num_layers},
                      {"num_attention_heads", config.num_heads},
                      {"num_key_value_heads", config.kv_heads()},
                      {"head_dim", config.head_width()},
                      {"hidden_size", config.embed_size},
                      {"intermediate_size", config.ffn_hidden_size},
                      {"vocab_size", config.vocab_size},
                      {"max_position_embeddings", config.block_size},
                      {"rms_norm_eps", config.layer_norm_eps},
                      {"tie_word_embeddings", config.tie_word_embeddings},
                      {"hidden_act", traits.gelu ? "gelu_pytorch_tanh" : "silu"}};
  if (family.has_attention_bias) json["attention_bias"] = config.attention_bias;
  if (family.has_mlp_bias) json["mlp_bias"] = config.mlp_bias;
  if (traits.padding_id >= 0 || family.padding_id >= 0)
    json["pad_token_id"] = traits.padding_id >= 0 ? nlohmann::json(traits.padding_id) : nlohmann::json();
  write_rope(family, {config.rope_theta, traits.local_rope_theta, traits.rotary_fraction, scaling}, json);
  if (family.has_softcaps) {
    const auto or_null = [](double cap) { return cap > 0 ? nlohmann::json(cap) : nlohmann::json(); };
    json["hidden_activation"] = "gelu_pytorch_tanh";
    json["attn_logit_softcapping"] = or_null(traits.attention_softcap);
    json["final_logit_softcapping"] = or_null(traits.logit_softcap);
    // transformers requires an integer if the value is whole.
    const bool whole = traits.query_scalar == std::floor(traits.query_scalar) && traits.query_scalar < 1e15;
    json["query_pre_attn_scalar"] =
        whole ? nlohmann::json(static_cast<std::int64_t>(traits.query_scalar)) : nlohmann::json(traits.query_scalar);
  }
  if (family.windows == Windows::none) return json;
  json["sliding_window"] = traits.window > 0 ? nlohmann::json(traits.window) : nlohmann::json();
  if (family.windows == Windows::from_layer) {
    json["use_sliding_window"] = traits.window > 0;
    // For readers that do not support layer_types.
    const auto first = std::find(traits.sliding.begin(), traits.sliding.end(), true) - traits.sliding.begin();
    json["max_window_layers"] = traits.window > 0 ? static_cast<std::int64_t>(first) : config.num_layers;
  }
  // A mistral with layer_types is opened as a ministral: one whose layers all slide stays what it was.
  const bool all_slide = std::ranges::find(traits.sliding, false) == traits.sliding.end();
  const bool is_usual = family.windows == Windows::all || (family.windows == Windows::all_or_listed && all_slide);
  if (traits.window > 0 && !is_usual) {
    json["layer_types"] = nlohmann::json::array();
    for (const bool slides : traits.sliding) json["layer_types"].push_back(slides ? kSliding : kFull);
  }
  return json;
}

class BlockTable {
 public:
  BlockTable(const ModelConfig& config, int block, std::vector<ParameterSpec>& table)
      : config_(config), block_(block), prefix_("model.layers." + std::to_string(block) + "."), table_(table) {}

  void attention() {
    const auto d = config_.embed_size, queries = config_.num_heads * config_.head_width();
    const auto keys = config_.kv_heads() * config_.head_width();
    const auto& traits = config_.traits;
    if (traits.fused_projections) {
      linear("self_attn.o_proj", d, queries, config_.attention_bias);
      linear("self_attn.qkv_proj", queries + 2 * keys, d, config_.has_qkv_bias());
      return;
    }
    linear("self_attn.q_proj", queries, d, config_.has_qkv_bias(), 1);
    linear("self_attn.k_proj", keys, d, config_.has_qkv_bias(), 1);
    linear("self_attn.v_proj", keys, d, config_.has_qkv_bias(), 1);
    linear("self_attn.o_proj", d, queries, config_.attention_bias);
    if (traits.head_norm == HeadNorm::none) return;
    const bool alone = traits.head_norm == HeadNorm::per_head;
    norm("self_attn.q_norm", alone ? config_.head_width() : queries);
    norm("self_attn.k_norm", alone ? config_.head_width() : keys);
  }

  void feed_forward() {
    const auto d = config_.embed_size, f = config_.ffn_hidden_size;
    if (config_.traits.fused_projections) {
      linear("mlp.gate_up_proj", 2 * f, d, config_.mlp_bias);
    } else {
      linear("mlp.gate_proj", f, d, config_.mlp_bias, 2);
      linear("mlp.up_proj", f, d, config_.mlp_bias, 2);
    }
    linear("mlp.down_proj", d, f, config_.mlp_bias);
  }

  void norms() {
    const auto& traits = config_.traits;
    std::vector<const char*> names;
    if (traits.pre_norms) names.push_back("input_layernorm");
    names.push_back("post_attention_layernorm");
    if (traits.pre_norms && traits.post_norms) names.push_back("pre_feedforward_layernorm");
    if (traits.post_norms) names.push_back("post_feedforward_layernorm");
    for (const auto* name : names) norm(name, config_.embed_size);
  }

 private:
  void linear(const char* name, std::int64_t rows, std::int64_t columns, bool bias, int same_input = 0) {
    table_.push_back({prefix_ + name + ".weight", {rows, columns}, Init::normal, 0.02, true, block_});
    if (same_input != 0) table_.back().same_input = 2 * block_ + same_input;
    if (bias) table_.push_back({prefix_ + name + ".bias", {rows}, Init::zeros, 0.0, false, block_});
  }
  void norm(const char* name, std::int64_t width) {
    const auto init = config_.traits.offset_norms ? Init::zeros : Init::ones;
    table_.push_back({prefix_ + name + ".weight", {width}, init, 0.0, false, block_});
  }

  const ModelConfig& config_;
  int block_;
  std::string prefix_;
  std::vector<ParameterSpec>& table_;
};

std::vector<ParameterSpec> llama_parameters(const ModelConfig& config) {
  const auto d = config.embed_size;
  std::vector<ParameterSpec> table;
  table.push_back({"model.embed_tokens.weight", {config.vocab_size, d}, Init::normal, 0.02, true, -1, true});
  for (int i = 0; i < config.num_layers; ++i) {
    BlockTable block(config, i, table);
    block.attention();
    block.feed_forward();
    block.norms();
  }
  table.push_back({"model.norm.weight", {d}, config.traits.offset_norms ? Init::zeros : Init::ones, 0.0, false, -1});
  if (!config.tie_word_embeddings) {
    table.push_back({"lm_head.weight", {config.vocab_size, d}, Init::normal, 0.02, true, -1});
  }
  return table;
}

std::optional<ModelConfig> llama_of_names(const HasName& has_name) {
  if (!has_name("model.embed_tokens.weight")) return std::nullopt;
  const auto has = [&](const char* member) { return has_name("model.layers.0." + std::string(member)); };
  ModelConfig config;
  config.architecture = Architecture::llama;
  config.num_layers = count_layers(has_name, "model.layers.", ".post_attention_layernorm.weight");
  config.attention_bias = has("self_attn.o_proj.bias");
  config.mlp_bias = has("mlp.gate_proj.bias");
  config.traits.qkv_bias = has("self_attn.q_proj.bias");
  config.traits.fused_projections = has("self_attn.qkv_proj.weight");
  config.traits.pre_norms = has("input_layernorm.weight");
  config.traits.post_norms = has("post_feedforward_layernorm.weight");
  if (has("self_attn.q_norm.weight")) config.traits.head_norm = HeadNorm::per_head;
  return config;
}

}  // namespace

const Kind& llama_kind() {
  static constexpr Kind kind{.architecture = Architecture::llama,
                             .read = read_llama,
                             .write = write_llama,
                             .parameters = llama_parameters,
                             .of_names = llama_of_names};
  return kind;
}

}  // namespace fsdp::config_detail
