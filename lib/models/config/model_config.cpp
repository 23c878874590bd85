#include "lib/models/config/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/gguf_metadata.hpp"
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

using config_detail::field;
using config_detail::field_or;

constexpr std::array<std::pair<const char*, std::string ModelConfig::*>, 2> kTokenIds{
    {{"bos_token_id", &ModelConfig::bos_token_id}, {"eos_token_id", &ModelConfig::eos_token_id}}};

/// Replaces the ids that `json` names.
void read_token_ids(ModelConfig& config, const nlohmann::json& json, const std::string& source) {
  for (const auto& [name, member] : kTokenIds) {
    const auto found = json.find(name);
    if (found == json.end()) continue;
    const auto is_id = [](const nlohmann::json& id) { return id.is_number_integer(); };
    if (!found->is_null() && !is_id(*found) && !(found->is_array() && std::ranges::all_of(*found, is_id)))
      throw FormatError(source + ": field '" + name + "' is " + json_text(*found) +
                        ", expected the id of a token, a list of ids, or null");
    config.*member = json_text(*found);
  }
}

/// Calls read() with the JSON of a file. \throws FormatError naming the file
template <typename Read>
auto read_fields(const std::filesystem::path& path, const Read& read) {
  const auto text = read_text_file(path, 1u << 20);
  try {
    return read(parse_json(text, path.string()));
  } catch (const nlohmann::json::parse_error& error) {
    throw FormatError(path.string(), error.byte, "not valid JSON");
  } catch (const nlohmann::json::exception& error) {  // e.g. 1e999, which exceeds a double
    throw FormatError(path.string() + ": is no configuration of a model: " + error.what());
  }
}

void write_token_ids(const ModelConfig& config, nlohmann::json& json) {
  for (const auto& [name, member] : kTokenIds)
    if (const auto& text = config.*member; !text.empty()) json[name] = parse_json(text, name);
}

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
  write_token_ids(config, json);
  return json;
}

}  // namespace

namespace {

/// The names that messages give to sizes.
struct SizeNames {
  const char *layers, *heads, *embed, *ffn, *vocab, *positions;
};
constexpr SizeNames kOptions{"--num-layers",      "--num-heads",  "--embed-size",
                             "--ffn-hidden-size", "--vocab-size", "--seq-len"};
constexpr SizeNames kFieldsOfGpt{"n_layer",
                                 "n_head",
                                 "n_embd",
                                 "n_hidden (GPT-2: n_inner)",
                                 "config.vocab_size",
                                 "config.block_size (GPT-2: n_positions)"};
constexpr SizeNames kFields{"num_hidden_layers", "num_attention_heads", "hidden_size",
                            "intermediate_size", "config.vocab_size",   "max_position_embeddings"};

/// \throws UsageError
void check_sizes(const ModelConfig& config, const SizeNames& names) {
  require_in(config.num_layers, 1 << 14, names.layers);
  require_in(config.num_heads, 1 << 14, names.heads);
  require_in(config.embed_size, 1 << 20, names.embed);
  require_in(config.ffn_hidden_size, 1 << 24, names.ffn);
  require_in(config.vocab_size, 1 << 24, names.vocab);
  require_in(config.block_size, 1 << 24, names.positions);
  if (config.architecture != Architecture::mingpt) {
    require_in(config.kv_heads(), 1 << 14, "num_key_value_heads");
    if (config.num_heads % config.kv_heads() != 0) {
      throw UsageError("num_attention_heads " + std::to_string(config.num_heads) +
                       " is not divisible by num_key_value_heads " + std::to_string(config.kv_heads()) +
                       ": every head of keys serves equally many heads of queries");
    }
    if (config.head_size != 0) require_in(config.head_size, 1 << 16, "head_dim");
    require_in(config.num_heads * config.head_width(), 1 << 22, "num_attention_heads times head_dim");
  }
  if (config.head_size == 0 && config.embed_size % config.num_heads != 0) {
    throw UsageError(fmt::format("{} {} is not divisible by {} {}: every head needs the same width", names.embed,
                                 config.embed_size, names.heads, config.num_heads));
  }
  if (config.dropout < 0 || config.dropout >= 1) {
    throw UsageError("--dropout is " + std::to_string(config.dropout) + ", it must be in [0, 1)");
  }
}

}  // namespace

void ModelConfig::validate() const { check_sizes(*this, kOptions); }

void config_detail::validate(const ModelConfig& config, const std::string& source) {
  try {
    check_sizes(config, config.architecture == Architecture::mingpt ? kFieldsOfGpt : kFields);
  } catch (const UsageError& error) {
    throw FormatError(source + ": " + error.what());
  }
}

namespace {

/// The ids of tokens apart.
ModelConfig sizes_from_json(const nlohmann::json& json, const std::string& source) {
  const auto type = config_detail::field_or(json, "model_type", std::string("mingpt"), source);
  if (const auto* family = config_detail::find_family(type))
    return type == config_detail::kFalcon ? config_detail::falcon_from_json(*family, json, source)
                                          : config_detail::decoder_from_json(*family, json, source);
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

}  // namespace

ModelConfig model_config_from_json(const nlohmann::json& json, const std::string& source) {
  if (!json.is_object()) throw FormatError(source + ": a JSON object was expected");
  if (const auto text = text_model_config(json, source); !text.is_null())
    return model_config_from_json(text, source + ", text_config");
  auto config = sizes_from_json(json, source);
  read_token_ids(config, json, source);
  return config;
}

nlohmann::json text_model_config(const nlohmann::json& json, const std::string& source) {
  constexpr const char* kText = "gemma3_text";
  if (!json.is_object() || json.value("model_type", nlohmann::json()) != "gemma3") return nullptr;
  const auto nested = json.find("text_config");
  if (nested != json.end() && !nested->is_null() && !nested->is_object())
    throw FormatError(source + ": field 'text_config' is " + json_text(*nested) + ", an object was expected");
  // Defaults of transformers for fields that the file leaves out.
  nlohmann::json text{{"vocab_size", 262208},    {"hidden_size", 2304},      {"intermediate_size", 9216},
                      {"num_hidden_layers", 26}, {"num_attention_heads", 8}, {"model_type", kText}};
  for (const auto* name : {"tie_word_embeddings", "bos_token_id", "eos_token_id", "torch_dtype", "dtype"})
    if (json.contains(name)) text[name] = json.at(name);
  if (nested != json.end() && nested->is_object()) text.update(*nested);
  text["architectures"] = {"Gemma3ForCausalLM"};
  if (text.at("model_type") != kText)
    throw FormatError(source + ": text_config has model_type " + json_text(text.at("model_type")) + ", " + kText +
                      " is supported");
  return text;
}

nlohmann::json model_config_to_json(const ModelConfig& config) {
  nlohmann::json json;
  if (config.architecture == Architecture::llama) {
    json = config_detail::decoder_to_json(config);
  } else if (config.architecture == Architecture::falcon) {
    json = config_detail::falcon_to_json(config);
  } else {
    json = {{"model_type", "mingpt"},
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
  write_token_ids(config, json);
  return json;
}

namespace {

/// Weights are given in place of the folder that they are in.
void refuse_other_file(const std::filesystem::path& path) {
  if (is_gguf_file(path))
    throw FormatError(
        fmt::format("{0}: is a GGUF file, and a folder with config.json and weights was expected, which "
                    "fsdp-ckpt-convert {0} DIR --to hf makes of it",
                    path.string()));
  const auto suffix = path.extension();
  if (suffix == ".safetensors" || suffix == ".pt" || suffix == ".pth" || suffix == ".bin")
    throw FormatError(path.string() + ": holds weights; the folder with config.json and the weights was expected");
}

void refuse_checkpoint(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::exists(directory / "run.json", error) &&
      !std::filesystem::exists(directory / ".metadata", error))
    return;
  throw MissingInput(directory.string() +
                     ": is a checkpoint, not a model's folder with config.json: --restart-checkpoint-file goes on from "
                     "a checkpoint, and fsdp-ckpt-convert --to hf makes a model's folder of it");
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& directory_or_file) {
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(directory_or_file, ignored);
  const auto path = is_file ? directory_or_file : directory_or_file / "config.json";
  if (is_file) refuse_other_file(path);
  if (!is_file && !std::filesystem::exists(path, ignored)) refuse_checkpoint(directory_or_file);
  auto config =
      read_fields(path, [&](const nlohmann::json& json) { return model_config_from_json(json, path.string()); });
  const auto generation = path.parent_path() / "generation_config.json";
  if (path.filename() == "config.json" && std::filesystem::exists(generation, ignored))
    read_fields(generation, [&](const nlohmann::json& json) { read_token_ids(config, json, generation.string()); });
  return config;
}

std::vector<ParameterSpec> parameter_table(const ModelConfig& config) {
  if (config.architecture == Architecture::llama) return config_detail::decoder_parameter_table(config);
  if (config.architecture == Architecture::falcon) return config_detail::falcon_parameter_table(config);
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
  if (!config.tie_word_embeddings) return {};
  if (config.architecture == Architecture::falcon) return {{"lm_head.weight", "transformer.word_embeddings.weight"}};
  return {{"lm_head.weight", "model.embed_tokens.weight"}};
}

std::string tied_name_of(const ModelConfig& config, const std::string& name) {
  for (const auto& [alias, original] : tied_names(config))
    if (original == name) return alias;
  if (!config.head_starts_as_embedding) return "";
  const std::string embedding =
      config.architecture == Architecture::falcon ? "transformer.word_embeddings.weight" : "model.embed_tokens.weight";
  if (name == "lm_head.weight") return embedding;
  if (name == embedding) return "lm_head.weight";
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
  auto json = model_config_to_json(config);
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
    if (static_cast<std::int64_t>(sliding.size()) != config_.num_layers)
      refuse("layer_types", "it must have num_hidden_layers of them");
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

}  // namespace

ModelConfig decoder_from_json(const Family& family, const nlohmann::json& json, const std::string& source) {
  return Reader(family, json, source).read();
}

nlohmann::json decoder_to_json(const ModelConfig& config) {
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

}  // namespace fsdp::config_detail
