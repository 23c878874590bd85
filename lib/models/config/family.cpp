#include "lib/models/config/model_config_fields.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace fsdp::config_detail {
namespace {

Family of(std::string_view type, std::string_view architecture) {
  Family family{.type = type, .architecture = architecture, .traits = {}};
  family.traits.family = type;
  return family;
}

std::vector<Family> without_gemma() {
  auto llama = of("llama", "LlamaForCausalLM");
  llama.has_mlp_bias = true;

  // Jiang et al., arXiv:2310.06825
  auto mistral = of("mistral", "MistralForCausalLM");
  mistral.windows = Windows::all_or_listed;  // with layer_types, transformers opens a mistral as a ministral
  mistral.window = 4096;
  mistral.kv_heads = 8;
  mistral.positions = 131072;
  mistral.has_attention_bias = false;

  auto ministral = mistral;  // its name where layer_types says which layers have a window
  ministral.type = "ministral";
  ministral.traits.family = ministral.type;
  ministral.architecture = "MinistralForCausalLM";

  auto qwen2 = of("qwen2", "Qwen2ForCausalLM");
  qwen2.traits.qkv_bias = true;
  qwen2.windows = Windows::from_layer;
  qwen2.window = 4096;
  qwen2.kv_heads = 32;
  qwen2.positions = 32768;
  qwen2.has_attention_bias = false;

  auto qwen3 = of("qwen3", "Qwen3ForCausalLM");
  qwen3.traits.head_norm = HeadNorm::per_head;
  qwen3.windows = Windows::from_layer;
  qwen3.window = 4096;
  qwen3.kv_heads = 32;
  qwen3.positions = 32768;
  qwen3.head_size = 128;

  // Abdin et al., arXiv:2404.14219
  auto phi3 = of("phi3", "Phi3ForCausalLM");
  phi3.traits.fused_projections = true;
  phi3.windows = Windows::all;
  phi3.eps = 1e-5;
  phi3.positions = 4096;
  phi3.padding_id = 32000;
  phi3.has_attention_bias = false;

  // arXiv:2501.00656
  auto olmo2 = of("olmo2", "Olmo2ForCausalLM");
  olmo2.traits.pre_norms = false;
  olmo2.traits.post_norms = true;
  olmo2.traits.head_norm = HeadNorm::all_heads;
  olmo2.eps = 1e-5;
  olmo2.padding_id = 1;

  return {llama, mistral, ministral, qwen2, qwen3, phi3, olmo2};
}

std::vector<Family> gemmas() {
  // Mesnard et al., arXiv:2403.08295
  auto gemma = of("gemma", "GemmaForCausalLM");
  gemma.traits.offset_norms = gemma.traits.gelu = gemma.traits.scaled_embeddings = true;
  gemma.head_size = 256;
  gemma.kv_heads = 16;
  gemma.positions = 8192;
  gemma.padding_id = 0;
  gemma.tied = true;

  // Rivière et al., arXiv:2408.00118
  auto gemma2 = gemma;
  gemma2.type = "gemma2";
  gemma2.traits.family = gemma2.type;
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
  gemma3.type = "gemma3_text";
  gemma3.traits.family = gemma3.type;
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
  auto falcon = of(kFalcon, "FalconForCausalLM");
  falcon.eps = 1e-5;
  falcon.tied = true;
  return falcon;
}

}  // namespace

std::span<const Family> families() {
  static const auto all = [] {
    auto list = without_gemma();
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

}  // namespace fsdp::config_detail
