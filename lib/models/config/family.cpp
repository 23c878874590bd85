#include "lib/models/config/model_config_fields.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace fsdp {
namespace config_detail {
namespace {

/// \param type  outlives the program's families: facts are views of it
void name(Family& family, std::string_view type) {
  family.type = family.title = type;
  family.traits.family = type;
}

Family of(const Kind& kind, std::string_view type, std::string_view architecture) {
  Family family;
  name(family, type);
  family.kind = &kind;
  family.architecture = architecture;
  return family;
}

Family llama_like(std::string_view type, std::string_view architecture) {
  auto family = of(llama_kind(), type, architecture);
  family.gguf = type;
  return family;
}

/// minGPT, and the same model as transformers' GPT-2.
std::vector<Family> mingpts() {
  auto mingpt = of(mingpt_kind(), "mingpt", "GPT2LMHeadModel");
  mingpt.title = "minGPT or GPT-2";
  mingpt.embedding = "transformer.wte.weight";
  mingpt.mark = "transformer.wpe.weight";
  mingpt.blocks = "transformer.h.";
  mingpt.is_always_tied = true;
  mingpt.conv1d_type = "gpt2";
  mingpt.has_built_in_tokenizer = true;
  mingpt.takes_sentencepiece = false;
  mingpt.gguf = "gpt2";
  mingpt.in_metas_files = false;

  auto gpt2 = mingpt;
  gpt2.type = "gpt2";
  gpt2.tied = true;
  return {mingpt, gpt2};
}

std::vector<Family> without_gemma() {
  auto llama = llama_like("llama", "LlamaForCausalLM");
  llama.has_mlp_bias = true;
  llama.in_megatron = true;

  // Jiang et al., arXiv:2310.06825
  auto mistral = llama_like("mistral", "MistralForCausalLM");
  mistral.windows = Windows::all_or_listed;  // with layer_types, transformers opens a mistral as a ministral
  mistral.window = 4096;
  mistral.kv_heads = 8;
  mistral.positions = 131072;
  mistral.has_attention_bias = false;
  mistral.gguf = "llama";
  mistral.in_megatron = true;

  auto ministral = mistral;  // its name where layer_types says which layers have a window
  name(ministral, "ministral");
  ministral.in_megatron = false;
  ministral.architecture = "MinistralForCausalLM";

  auto qwen2 = llama_like("qwen2", "Qwen2ForCausalLM");
  qwen2.traits.qkv_bias = true;
  qwen2.windows = Windows::from_layer;
  qwen2.window = 4096;
  qwen2.kv_heads = 32;
  qwen2.positions = 32768;
  qwen2.has_attention_bias = false;
  qwen2.in_megatron = true;

  auto qwen3 = llama_like("qwen3", "Qwen3ForCausalLM");
  qwen3.traits.head_norm = HeadNorm::per_head;
  qwen3.windows = Windows::from_layer;
  qwen3.window = 4096;
  qwen3.kv_heads = 32;
  qwen3.positions = 32768;
  qwen3.head_size = 128;
  qwen3.in_megatron = true;

  // Abdin et al., arXiv:2404.14219
  auto phi3 = llama_like("phi3", "Phi3ForCausalLM");
  phi3.traits.fused_projections = true;
  phi3.windows = Windows::all;
  phi3.eps = 1e-5;
  phi3.positions = 4096;
  phi3.padding_id = 32000;
  phi3.has_attention_bias = false;
  phi3.gguf = "";  // llama.cpp reads its scaling in another way

  // arXiv:2501.00656
  auto olmo2 = llama_like("olmo2", "Olmo2ForCausalLM");
  olmo2.traits.pre_norms = false;
  olmo2.traits.post_norms = true;
  olmo2.traits.head_norm = HeadNorm::all_heads;
  olmo2.eps = 1e-5;
  olmo2.padding_id = 1;

  return {llama, mistral, ministral, qwen2, qwen3, phi3, olmo2};
}

std::vector<Family> gemmas() {
  // Mesnard et al., arXiv:2403.08295
  auto gemma = llama_like("gemma", "GemmaForCausalLM");
  gemma.traits.offset_norms = gemma.traits.gelu = gemma.traits.scaled_embeddings = true;
  gemma.head_size = 256;
  gemma.kv_heads = 16;
  gemma.positions = 8192;
  gemma.padding_id = 0;
  gemma.tied = true;

  // Rivière et al., arXiv:2408.00118
  auto gemma2 = gemma;
  name(gemma2, "gemma2");
  gemma2.gguf = "gemma2";
  gemma2.architecture = "Gemma2ForCausalLM";
  gemma2.traits.post_norms = true;
  gemma2.traits.attention_softcap = 50;
  gemma2.traits.logit_softcap = 30;
  gemma2.traits.query_scalar = 256;
  gemma2.windows = Windows::alternating;
  gemma2.window = 4096;
  gemma2.kv_heads = 4;
  gemma2.has_softcaps = true;

  // Kamath et al., arXiv:2503.19786. transformers reads attn_logit_softcapping but does not use it.
  auto gemma3 = gemma2;
  name(gemma3, "gemma3_text");
  gemma3.gguf = "gemma3";
  gemma3.architecture = "Gemma3ForCausalLM";
  gemma3.traits.head_norm = HeadNorm::per_head;
  gemma3.traits.attention_softcap = gemma3.traits.logit_softcap = 0;
  gemma3.traits.local_rope_theta = 1e4;
  gemma3.windows = Windows::pattern;
  gemma3.rope_theta = 1e6;
  gemma3.positions = 131072;

  return {gemma, gemma2, gemma3};
}

Family falcon_family() {
  auto falcon = of(falcon_kind(), "falcon", "FalconForCausalLM");
  falcon.embedding = falcon.mark = "transformer.word_embeddings.weight";
  falcon.blocks = "transformer.h.";
  falcon.in_metas_files = false;
  falcon.eps = 1e-5;
  falcon.tied = true;
  return falcon;
}

void add_once(std::vector<std::string_view>& list, std::string_view name) {
  if (std::ranges::find(list, name) == list.end()) list.push_back(name);
}

/// The different values of a fact.
std::vector<std::string_view> values_of(std::string_view FamilyFacts::*fact) {
  std::vector<std::string_view> values;
  for (const auto& family : families()) add_once(values, family.*fact);
  return values;
}

}  // namespace

std::span<const Family> families() {
  static const auto all = [] {
    auto list = mingpts();
    for (auto& family : without_gemma()) list.push_back(std::move(family));
    for (auto& family : gemmas()) list.push_back(std::move(family));
    list.push_back(falcon_family());
    return list;
  }();
  return all;
}

const Family* find_family(std::string_view type) {
  const auto all = families();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Family& family) { return family.type == type; });
  return found == all.end() ? nullptr : &*found;
}

const Family& family_of(const ModelConfig& config) {
  const Family* first = nullptr;
  for (const auto& family : families()) {
    if (family.kind->architecture != config.architecture) continue;
    if (family.type == config.traits.family) return family;
    if (first == nullptr) first = &family;
  }
  return *first;
}

std::int64_t count_layers(const HasName& has, const std::string& prefix, const std::string& member) {
  std::int64_t layers = 0;
  while (has(prefix + std::to_string(layers) + member)) ++layers;
  return layers;
}

}  // namespace config_detail

const FamilyFacts& facts_of(const ModelConfig& config) { return config_detail::family_of(config); }

const FamilyFacts* find_facts(std::string_view type) { return config_detail::find_family(type); }

std::vector<std::string_view> types_with(bool FamilyFacts::*fact) {
  std::vector<std::string_view> types;
  for (const auto& family : config_detail::families())
    if (family.*fact) types.push_back(family.type);
  return types;
}

const std::vector<std::string_view>& token_embeddings() {
  static const auto names = config_detail::values_of(&FamilyFacts::embedding);
  return names;
}

bool is_token_table(std::string_view parameter) {
  return std::ranges::any_of(config_detail::families(), [&](const FamilyFacts& family) {
    return parameter == family.embedding || parameter == family.head;
  });
}

const std::vector<std::string_view>& model_marks() {
  static const auto names = config_detail::values_of(&FamilyFacts::mark);
  return names;
}

const std::vector<std::string_view>& block_prefixes() {
  static const auto names = config_detail::values_of(&FamilyFacts::blocks);
  return names;
}

std::vector<std::string> parameter_order(const std::function<bool(const std::string&)>& has_name) {
  for (const auto& family : config_detail::families()) {
    const auto config = family.kind->of_names(has_name);
    if (!config) continue;
    std::vector<std::string> order;
    for (auto& spec : parameter_table(*config)) order.push_back(std::move(spec.name));
    if (order.back() != family.head) order.emplace_back(family.head);
    return order;
  }
  return {};
}

}  // namespace fsdp
