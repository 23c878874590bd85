#include "lib/files/transform/name_map_table.hpp"

#include <array>

namespace fsdp {
namespace {

/// '#' stands for a layer's number.
struct NameRow {
  std::string_view from, to;
  NameChange change = NameChange::none;
};

// --- minGPT and GPT2LMHeadModel: the same names ----------------------------------------------------------------------
constexpr std::array<NameRow, 17> kGpt2{{
    {"transformer.wte.weight", "transformer.wte.weight"},
    {"transformer.wpe.weight", "transformer.wpe.weight"},
    {"transformer.h.#.ln_1.weight", "transformer.h.#.ln_1.weight"},
    {"transformer.h.#.ln_1.bias", "transformer.h.#.ln_1.bias"},
    {"transformer.h.#.attn.c_attn.weight", "transformer.h.#.attn.c_attn.weight", NameChange::transposed},
    {"transformer.h.#.attn.c_attn.bias", "transformer.h.#.attn.c_attn.bias"},
    {"transformer.h.#.attn.c_proj.weight", "transformer.h.#.attn.c_proj.weight", NameChange::transposed},
    {"transformer.h.#.attn.c_proj.bias", "transformer.h.#.attn.c_proj.bias"},
    {"transformer.h.#.ln_2.weight", "transformer.h.#.ln_2.weight"},
    {"transformer.h.#.ln_2.bias", "transformer.h.#.ln_2.bias"},
    {"transformer.h.#.mlp.c_fc.weight", "transformer.h.#.mlp.c_fc.weight", NameChange::transposed},
    {"transformer.h.#.mlp.c_fc.bias", "transformer.h.#.mlp.c_fc.bias"},
    {"transformer.h.#.mlp.c_proj.weight", "transformer.h.#.mlp.c_proj.weight", NameChange::transposed},
    {"transformer.h.#.mlp.c_proj.bias", "transformer.h.#.mlp.c_proj.bias"},
    {"transformer.ln_f.weight", "transformer.ln_f.weight"},
    {"transformer.ln_f.bias", "transformer.ln_f.bias"},
    {"lm_head.weight", "lm_head.weight"},
}};
/// Causal masks: minGPT stores one too (attn.bias), GPT-2 of older transformers also a fill value.
constexpr std::array<NameRow, 2> kGpt2Buffers{{
    {"transformer.h.#.attn.bias", "", NameChange::dropped},
    {"transformer.h.#.attn.masked_bias", "", NameChange::dropped},
}};

// --- Llama -----------------------------------------------------------------------------------------------------------
constexpr std::array<NameRow, 19> kLlama{{
    {"model.embed_tokens.weight", "model.embed_tokens.weight"},
    {"model.layers.#.self_attn.q_proj.weight", "model.layers.#.self_attn.q_proj.weight"},
    {"model.layers.#.self_attn.q_proj.bias", "model.layers.#.self_attn.q_proj.bias"},
    {"model.layers.#.self_attn.k_proj.weight", "model.layers.#.self_attn.k_proj.weight"},
    {"model.layers.#.self_attn.k_proj.bias", "model.layers.#.self_attn.k_proj.bias"},
    {"model.layers.#.self_attn.v_proj.weight", "model.layers.#.self_attn.v_proj.weight"},
    {"model.layers.#.self_attn.v_proj.bias", "model.layers.#.self_attn.v_proj.bias"},
    {"model.layers.#.self_attn.o_proj.weight", "model.layers.#.self_attn.o_proj.weight"},
    {"model.layers.#.self_attn.o_proj.bias", "model.layers.#.self_attn.o_proj.bias"},
    {"model.layers.#.mlp.gate_proj.weight", "model.layers.#.mlp.gate_proj.weight"},
    {"model.layers.#.mlp.gate_proj.bias", "model.layers.#.mlp.gate_proj.bias"},
    {"model.layers.#.mlp.up_proj.weight", "model.layers.#.mlp.up_proj.weight"},
    {"model.layers.#.mlp.up_proj.bias", "model.layers.#.mlp.up_proj.bias"},
    {"model.layers.#.mlp.down_proj.weight", "model.layers.#.mlp.down_proj.weight"},
    {"model.layers.#.mlp.down_proj.bias", "model.layers.#.mlp.down_proj.bias"},
    {"model.layers.#.input_layernorm.weight", "model.layers.#.input_layernorm.weight"},
    {"model.layers.#.post_attention_layernorm.weight", "model.layers.#.post_attention_layernorm.weight"},
    {"model.norm.weight", "model.norm.weight"},
    {"lm_head.weight", "lm_head.weight"},
}};
constexpr std::array<NameRow, 2> kLlamaBuffers{{
    {"model.layers.#.self_attn.rotary_emb.inv_freq", "", NameChange::dropped},
    {"model.rotary_emb.inv_freq", "", NameChange::dropped},
}};
/// Meta's consolidated.*.pth.
constexpr std::array<NameRow, 13> kMeta{{
    {"tok_embeddings.weight", "model.embed_tokens.weight"},
    {"layers.#.attention.wq.weight", "model.layers.#.self_attn.q_proj.weight", NameChange::pairs_to_halves_q},
    {"layers.#.attention.wk.weight", "model.layers.#.self_attn.k_proj.weight", NameChange::pairs_to_halves_k},
    {"layers.#.attention.wv.weight", "model.layers.#.self_attn.v_proj.weight"},
    {"layers.#.attention.wo.weight", "model.layers.#.self_attn.o_proj.weight"},
    {"layers.#.feed_forward.w1.weight", "model.layers.#.mlp.gate_proj.weight"},
    {"layers.#.feed_forward.w3.weight", "model.layers.#.mlp.up_proj.weight"},
    {"layers.#.feed_forward.w2.weight", "model.layers.#.mlp.down_proj.weight"},
    {"layers.#.attention_norm.weight", "model.layers.#.input_layernorm.weight"},
    {"layers.#.ffn_norm.weight", "model.layers.#.post_attention_layernorm.weight"},
    {"norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"rope.freqs", "", NameChange::dropped},
}};

/// The digits that '#' stands for, empty where the pattern has none; nothing when `name` does not match.
std::optional<std::string_view> match(std::string_view pattern, std::string_view name) {
  const auto mark = pattern.find('#');
  if (mark == std::string_view::npos) return pattern == name ? std::optional<std::string_view>("") : std::nullopt;
  const auto before = pattern.substr(0, mark), after = pattern.substr(mark + 1);
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after)) {
    return std::nullopt;
  }
  const auto digits = name.substr(before.size(), name.size() - before.size() - after.size());
  return digits.find_first_not_of("0123456789") == std::string_view::npos ? std::optional(digits) : std::nullopt;
}

std::string fill(std::string_view pattern, std::string_view digits) {
  std::string name(pattern);
  const auto mark = name.find('#');
  return mark == std::string::npos ? name : name.replace(mark, 1, digits);
}

std::optional<MappedName> look_up(std::span<const NameRow> rows, std::string_view name) {
  for (const auto& row : rows) {
    if (const auto digits = match(row.from, name)) return MappedName{fill(row.to, *digits), row.change};
  }
  return std::nullopt;
}

std::optional<MappedName> look_up_back(std::span<const NameRow> rows, std::string_view name) {
  for (const auto& row : rows) {
    if (row.change == NameChange::dropped) continue;
    const auto digits = match(row.to, name);
    if (!digits) continue;
    const auto change = row.change == NameChange::pairs_to_halves_q   ? NameChange::halves_to_pairs_q
                        : row.change == NameChange::pairs_to_halves_k ? NameChange::halves_to_pairs_k
                                                                      : row.change;
    return MappedName{fill(row.from, *digits), change};
  }
  return std::nullopt;
}

std::optional<MappedName> llama_name(std::string_view name) {
  auto found = look_up(kLlama, name);
  return found ? found : look_up(kLlamaBuffers, name);
}

}  // namespace

std::optional<MappedName> mapped_name(NameMap map, std::string_view name) {
  std::optional<MappedName> found;
  switch (map) {
    case NameMap::none:
      return MappedName{std::string(name)};
    case NameMap::mingpt_to_gpt2:
    case NameMap::gpt2_to_mingpt:
      found = look_up(kGpt2, name);
      if (!found) found = look_up(kGpt2Buffers, name);
      // The files of openai-community/gpt2 hold a bare GPT2Model.
      if (!found && map == NameMap::gpt2_to_mingpt && !name.starts_with("transformer.")) {
        found = mapped_name(map, "transformer." + std::string(name));
      }
      return found;
    case NameMap::llama_to_hf:
      found = look_up(kMeta, name);
      [[fallthrough]];
    case NameMap::hf_to_llama:
      if (!found) found = llama_name(name);
      if (!found && !name.starts_with("model.")) found = llama_name("model." + std::string(name));
      return found;
    case NameMap::hf_to_meta:
      found = look_up_back(kMeta, name);
      if (!found) found = look_up(kLlamaBuffers, name);
      return found;
  }
  return std::nullopt;
}

}  // namespace fsdp
