// The parameters of Llama-family decoders, with transformers' names and in transformers' order.
#include <initializer_list>

#include "lib/models/config/model_config_fields.hpp"

namespace fsdp::config_detail {
namespace {

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

}  // namespace

std::vector<ParameterSpec> decoder_parameter_table(const ModelConfig& config) {
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

}  // namespace fsdp::config_detail
