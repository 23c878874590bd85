// The key-value pairs of a GGUF file: what llama.cpp knows of a model besides its tensors.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/gguf/gguf_model.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/rope.hpp"

namespace fsdp {
namespace {

constexpr std::string_view kGpt2 = "gpt2";  // the one without rotary positions

[[noreturn]] void refuse_model(const ModelConfig& config, const std::string& what) {
  throw RequestError(fmt::format("llama.cpp's {} {}; GGUF cannot express this model", config.traits.family, what));
}

nlohmann::json scaling_of(const ModelConfig& config) {
  return config.rope_scaling.empty() ? nlohmann::json() : parse_json(config.rope_scaling, "rope_scaling");
}

std::string kind_of_scaling(const nlohmann::json& scaling) {
  return scaling.is_null() ? "" : scaling.value("rope_type", scaling.value("type", ""));
}

/// True when every layer whose number (from 1) is a multiple of `period` attends to all positions, and no other does.
bool slides_with_period(const ModelConfig& config, std::int64_t period) {
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    if (config.traits.slides(layer) != ((layer + 1) % period != 0)) return false;
  return true;
}

void check_gemma(const ModelConfig& config) {
  const auto& traits = config.traits;
  const bool is_second = traits.family == "gemma2", is_third = traits.family == "gemma3_text";
  if (config.has_qkv_bias()) refuse_model(config, "has no biases");
  if (!is_third && !config.tie_word_embeddings) refuse_model(config, "ties its head to the embedding");
  if (!is_second && !is_third) return;
  const std::int64_t period = is_second ? 2 : 6;
  if (!slides_with_period(config, period))
    refuse_model(config, fmt::format("has a layer without a window after each {} with one", period - 1));
  if (is_second && !(traits.attention_softcap > 0 && traits.logit_softcap > 0))
    refuse_model(config, "caps scores and logits");
  const bool is_largest = config.num_layers == (is_second ? kGemma2Of27B : kGemma3Of27B);
  const auto scalar = static_cast<double>(is_largest ? config.embed_size / config.num_heads : config.head_width());
  if (traits.query_scalar != scalar) refuse_model(config, fmt::format("has query_pre_attn_scalar {}", scalar));
}

constexpr double kAttentionRounding = 1e-6;

/// The factor of cosines and sines that llama.cpp computes for yarn.
double usual_attention_factor(double stretch) { return stretch <= 1 ? 1 : 0.1 * std::log(stretch) + 1; }

/// Refuses what llama.cpp's yarn does otherwise than transformers, and has no key for.
void check_yarn(const ModelConfig& config, const nlohmann::json& scaling) {
  rope_frequencies(config);  // throws when a number is missing
  const auto factor = rope_attention_factor(config), usual = usual_attention_factor(rope_stretch(config));
  const bool says_factor = scaling.contains("attention_factor") && !scaling.at("attention_factor").is_null();
  if (!says_factor && std::abs(factor - usual) > kAttentionRounding)
    refuse_model(config, "computes yarn's factor of attention without mscale and mscale_all_dim");
  if (scaling.value("truncate", nlohmann::json()) == false)
    refuse_model(config, "rounds the bounds of yarn, which config.json forbids (truncate)");
}

void check_rope(const ModelConfig& config, const std::string& architecture) {
  const auto scaling = scaling_of(config);
  const auto kind = kind_of_scaling(scaling);
  const bool is_yarn = kind == "yarn" && architecture != "gemma3";
  const bool is_known = kind.empty() || kind == "default" || kind == "dynamic" || kind == "linear" || is_yarn ||
                        (kind == "llama3" && architecture == "llama");
  const bool scales = !kind.empty() && kind != "default" && kind != "dynamic";
  if (!is_known || (scales && (architecture == "gemma" || architecture == "gemma2")))
    refuse_model(config, "knows no rope scaling of the kind " + kind);
  if (is_yarn) check_yarn(config, scaling);
}

/// Collects pairs, whose keys begin with the architecture unless they say otherwise.
class Entries {
 public:
  explicit Entries(std::string architecture) : architecture_(std::move(architecture)) {
    add("general.architecture", architecture_);
    add("general.type", std::string("model"));
  }
  void add(const std::string& key, GgufValue value) { list.push_back({key, std::move(value)}); }
  void count(std::string_view key, std::int64_t value) {
    add(architecture_ + "." + std::string(key), static_cast<std::uint32_t>(value));
  }
  void number(std::string_view key, double value) {
    add(architecture_ + "." + std::string(key), static_cast<float>(value));
  }
  void text(std::string_view key, const std::string& value) { add(architecture_ + "." + std::string(key), value); }
  const std::string& architecture() const { return architecture_; }

  std::vector<GgufEntry> list;

 private:
  std::string architecture_;
};

/// "7.2B", "14K". Source: gguf-py, utility.py (model_weight_count_rounded_notation)
std::string size_label(std::uint64_t parameters) {
  const auto count = static_cast<double>(parameters);
  const auto [scale, unit] = count >= 1e12  ? std::pair(1e-12, 'T')
                             : count >= 1e9 ? std::pair(1e-9, 'B')
                             : count >= 1e6 ? std::pair(1e-6, 'M')
                                            : std::pair(1e-3, 'K');
  const auto whole = std::nearbyint(count * scale);
  const int decimals = whole == 0 ? 2 : whole < 10 ? 1 : 0;
  return fmt::format("{:.{}f}{}", count * scale, decimals, unit);
}

std::uint64_t num_elements_of(const Source& model) {
  std::uint64_t sum = 0;
  for (const auto& tensor : model.tensors()) sum += element_count(tensor.other ? tensor.other->shape : tensor.shape);
  return sum;
}

void add_gpt2(Entries& entries, const ModelConfig& config) {
  entries.count("block_count", config.num_layers);
  entries.count("context_length", config.block_size);
  entries.count("embedding_length", config.embed_size);
  entries.count("feed_forward_length", config.ffn_hidden_size);
  entries.count("attention.head_count", config.num_heads);
  entries.number("attention.layer_norm_epsilon", config.layer_norm_eps);
}

/// Whether the converter finds head_dim: in some families it is always set, in the others where config.json has it.
bool says_head_width(const ModelConfig& config) {
  return config.head_size != 0 || (config.traits.family != "qwen2" && config.traits.family != "olmo2");
}

void add_head_width(Entries& entries, const ModelConfig& config) {
  if (!says_head_width(config)) return;
  entries.count("attention.key_length", config.head_width());
  entries.count("attention.value_length", config.head_width());
}

void add_sizes(Entries& entries, const ModelConfig& config, bool is_older_gemma) {
  const auto blocks = [&] { entries.count("block_count", config.num_layers); };
  if (!is_older_gemma) blocks();
  entries.count("context_length", config.block_size);
  entries.count("embedding_length", config.embed_size);
  if (is_older_gemma) blocks();
  entries.count("feed_forward_length", config.ffn_hidden_size);
  entries.count("attention.head_count", config.num_heads);
  entries.count("attention.head_count_kv", config.kv_heads());
}

void add_rope(Entries& entries, const ModelConfig& config) {
  const auto scaling = scaling_of(config);
  if (kind_of_scaling(scaling) == "linear") {
    entries.text("rope.scaling.type", "linear");
    entries.number("rope.scaling.factor", scaling.value("factor", 1.0));
  } else if (kind_of_scaling(scaling) == "yarn") {
    entries.text("rope.scaling.type", "yarn");
    entries.number("rope.scaling.factor", rope_stretch(config));
    entries.count("rope.scaling.original_context_length", scaling.at("original_max_position_embeddings"));
    constexpr std::array<std::pair<const char*, const char*>, 3> keys{
        {{"attention_factor", "yarn_attn_factor"}, {"beta_fast", "yarn_beta_fast"}, {"beta_slow", "yarn_beta_slow"}}};
    for (const auto& [field, key] : keys)
      if (scaling.contains(field) && !scaling.at(field).is_null())
        entries.number("rope.scaling." + std::string(key), scaling.at(field));
  }
  entries.number("rope.freq_base", config.rope_theta);
  if (config.traits.local_rope_theta > 0) entries.number("rope.freq_base_swa", config.traits.local_rope_theta);
}

void add_decoder(Entries& entries, const ModelConfig& config, GgufFileType type) {
  constexpr double gemmas_theta = 1e4;
  const bool is_older_gemma = entries.architecture() == "gemma" || entries.architecture() == "gemma2";
  const auto& traits = config.traits;
  add_sizes(entries, config, is_older_gemma);
  if (!is_older_gemma || config.rope_theta != gemmas_theta) add_rope(entries, config);
  entries.number("attention.layer_norm_rms_epsilon", config.layer_norm_eps);
  add_head_width(entries, config);
  entries.add("general.file_type", static_cast<std::uint32_t>(type));
  if (traits.attention_softcap > 0) entries.number("attn_logit_softcapping", traits.attention_softcap);
  if (traits.logit_softcap > 0) entries.number("final_logit_softcapping", traits.logit_softcap);
  if (traits.post_norms && traits.window > 0) entries.count("attention.sliding_window", traits.window);
  if (entries.architecture() != "llama") return;
  entries.count("vocab_size", config.vocab_size);
  entries.count("rope.dimension_count", config.head_width());
}

void add_marks(Entries& entries, const GgufVocabulary& vocabulary) {
  // llama.cpp spells three of the names otherwise.
  const auto key_of = [](const std::string& kind) {
    return kind == "unk" ? "unknown" : kind == "sep" ? "seperator" : kind == "pad" ? "padding" : kind;
  };
  for (const auto& [kind, id] : vocabulary.ids) entries.add("tokenizer.ggml." + key_of(kind) + "_token_id", id);
  for (const auto& [kind, adds] : vocabulary.adds)
    if (kind == "bos" || kind == "eos" || kind == "sep") entries.add("tokenizer.ggml.add_" + kind + "_token", adds);
}

/// Templates other than the usual one have a name in their key, in which only letters and digits of ASCII stay.
void add_templates(Entries& entries, const GgufVocabulary& vocabulary) {
  const std::string key = "tokenizer.chat_template";
  std::vector<std::string> names;
  const std::string* usual = nullptr;
  for (const auto& [name, text] : vocabulary.templates) {
    if (name == "default") {
      usual = &text;
      continue;
    }
    auto safe = name;
    std::ranges::replace_if(
        safe, [](unsigned char c) { return c >= 0x80 || std::isalnum(c) == 0; }, '_');
    names.push_back(safe);
    entries.add(key + "." + safe, text);
  }
  if (!names.empty()) entries.add(key + "s", names);
  if (usual != nullptr) entries.add(key, *usual);
}

void add_vocabulary(Entries& entries, const GgufVocabulary& vocabulary, bool is_gemma) {
  const std::string space_key = "tokenizer.ggml.add_space_prefix";
  const bool is_told = entries.architecture() == "llama" || vocabulary.model == "llama";
  if (vocabulary.space_prefix && is_told && !is_gemma) entries.add(space_key, *vocabulary.space_prefix);
  entries.add("tokenizer.ggml.model", vocabulary.model);
  entries.add("tokenizer.ggml.pre", vocabulary.pre);
  entries.add("tokenizer.ggml.tokens", vocabulary.tokens);
  if (!vocabulary.scores.empty()) entries.add("tokenizer.ggml.scores", vocabulary.scores);
  entries.add("tokenizer.ggml.token_type", vocabulary.types);
  if (!vocabulary.merges.empty()) entries.add("tokenizer.ggml.merges", vocabulary.merges);
  add_marks(entries, vocabulary);
  add_templates(entries, vocabulary);
  if (is_gemma) entries.add(space_key, vocabulary.prepends_space);
}

}  // namespace

std::string gguf_architecture(const ModelConfig& config) {
  if (config.has_scores())
    throw RequestError("GGUF files hold language models, and this model scores texts: Hugging Face's format keeps it");
  std::string architecture(facts_of(config).gguf);
  if (architecture.empty())
    throw RequestError(fmt::format("GGUF files are not written of models of the family {}", facts_of(config).type));
  if (architecture == kGpt2) return architecture;
  if (architecture.starts_with("gemma")) check_gemma(config);
  if ((architecture == "qwen3" || architecture == "olmo2") && config.has_qkv_bias())
    refuse_model(config, "has no biases");
  check_rope(config, architecture);
  return architecture;
}

std::string gguf_rope_remark(const ModelConfig& config) {
  if (kind_of_scaling(scaling_of(config)) != "yarn") return "";
  const auto factor = rope_attention_factor(config), usual = usual_attention_factor(rope_stretch(config));
  if (std::abs(factor - usual) <= kAttentionRounding) return "";
  return fmt::format(
      "config.json gives yarn an attention_factor of {}, and not every llama.cpp reads it: others take {}", factor,
      usual);
}

std::vector<GgufEntry> gguf_entries(const Source& model, const ModelConfig& config, GgufFileType type,
                                    const std::string& name, const std::optional<GgufVocabulary>& vocabulary) {
  constexpr std::uint32_t quantization_version = 2;
  Entries entries(gguf_architecture(config));
  entries.add("general.name", name);
  entries.add("general.size_label", size_label(num_elements_of(model)));
  if (entries.architecture() == kGpt2) {
    add_gpt2(entries, config);
    entries.add("general.file_type", static_cast<std::uint32_t>(type));
  } else {
    add_decoder(entries, config, type);
  }
  if (!vocabulary && entries.architecture() != "llama") entries.count("vocab_size", config.vocab_size);
  entries.add("general.quantization_version", quantization_version);
  if (vocabulary) {
    add_vocabulary(entries, *vocabulary, entries.architecture().starts_with("gemma"));
  } else {
    entries.add("tokenizer.ggml.model", std::string("none"));
  }
  return std::move(entries.list);
}

}  // namespace fsdp
