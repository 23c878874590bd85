#pragma once
// Configuration of a model: architecture, sizes, and the name, shape and initial value of every parameter. Free of
// LibTorch.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

/// Norm of queries and keys before they are rotated.
enum class HeadNorm {
  none,
  per_head,  ///< of each head by itself: one weight of head_width() elements for all
  all_heads  ///< of all heads of a token at once
};

/// The defaults are Llama's.
struct DecoderTraits {
  std::string family = "llama";    ///< config.json's model_type
  bool qkv_bias = false;           ///< on queries, keys and values, not on what follows them
  bool fused_projections = false;  ///< one matrix qkv_proj = [q; k; v] and one gate_up_proj = [gate; up]
  bool pre_norms = true;           ///< before attention and feed-forward
  bool post_norms = false;         ///< behind them, before the residual is added
  bool offset_norms = false;       ///< RMSNorms multiply with 1 + weight
  HeadNorm head_norm = HeadNorm::none;
  bool gelu = false;               ///< tanh-GELU gates the feed-forward, not SiLU
  bool scaled_embeddings = false;  ///< times sqrt(embed_size), rounded to their type
  double attention_softcap = 0;    ///< scores become cap tanh(score / cap); 0: they stay
  double logit_softcap = 0;
  double query_scalar = 0;         ///< scores times query_scalar^-1/2; 0: head_width()
  double rotary_fraction = 1;      ///< of a head's elements, the first ones
  std::int64_t window = 0;         ///< a query sees so many positions, its own included, in layers that slide; 0: all
  std::vector<bool> sliding = {};  ///< by layer; empty: none slides
  double local_rope_theta = 0;     ///< rope_theta of layers that slide, which are not scaled; 0: as the others
  std::int64_t padding_id = -1;    ///< its embedding's lookups have no gradient; negative: there is none

  bool slides(std::int64_t layer) const {
    return window > 0 && !sliding.empty() && sliding[static_cast<std::size_t>(layer)];
  }
};

enum class Architecture {
  mingpt,
  llama  ///< and its kin: rotary positions, RMSNorm, gated feed-forward; see DecoderTraits
};

/// A decoder. Field names in JSON follow the architecture's own config: minGPT's n_layer, n_head, n_embd, n_hidden,
/// vocab_size, block_size, ... or, for Llama and its kin, those of the family's config in Hugging Face's transformers.
struct ModelConfig {
  Architecture architecture = Architecture::mingpt;
  std::int64_t num_layers = 12;
  std::int64_t num_heads = 12;
  std::int64_t embed_size = 768;
  std::int64_t ffn_hidden_size = 3072;
  std::int64_t vocab_size = 50257;
  std::int64_t block_size = 256;  ///< longest sequence (positions that have an embedding)
  double dropout = 0.0;
  double layer_norm_eps = 1e-5;  ///< Llama: rms_norm_eps
  // Llama and its kin only.
  std::int64_t num_kv_heads = 0;     ///< heads of keys and values; 0: num_heads
  std::int64_t head_size = 0;        ///< JSON's head_dim; 0: embed_size / num_heads
  double rope_theta = 10000.0;       ///< base of the rotary embedding's wavelengths
  std::string rope_scaling;          ///< JSON's rope_scaling as compact JSON text; empty: none
  bool tie_word_embeddings = false;  ///< the head is the token embedding (minGPT: always)
  bool attention_bias = false;       ///< on queries, keys, values and what follows them
  bool mlp_bias = false;
  DecoderTraits traits;
  std::string source;  ///< what it was read from, for messages; empty: it was made here

  std::int64_t kv_heads() const { return num_kv_heads == 0 ? num_heads : num_kv_heads; }
  std::int64_t head_width() const { return head_size == 0 ? embed_size / num_heads : head_size; }
  /// Elements of a head that turn, as transformers counts them; an odd number turns one more.
  std::int64_t rotary_width() const {
    return static_cast<std::int64_t>(static_cast<double>(head_width()) * traits.rotary_fraction);
  }
  std::int64_t rotary_pairs() const { return (rotary_width() + 1) / 2; }
  bool has_qkv_bias() const { return attention_bias || traits.qkv_bias; }

  /// \throws UsageError naming the sizes that cannot work together
  void validate() const;
};

/// Accepts our own fields and Hugging Face's of model_type gpt2 (a minGPT, whose directory keeps the matrices
/// transposed) and of the families in family.cpp. \throws FormatError naming `source` and the field that is missing,
///         wrong, or changes the model in a way that is not built
ModelConfig model_config_from_json(const nlohmann::json& json, const std::string& source);
nlohmann::json model_config_to_json(const ModelConfig& config);
/// Reads DIR/config.json, or the file itself.
ModelConfig read_model_config(const std::filesystem::path& directory_or_file);

/// The config.json with which Hugging Face's transformers opens the model: GPT2LMHeadModel for minGPT, whose GELU is
/// GPT-2's gelu_new, and the family's class for Llama and its kin. Pure ASCII; the caller adds what it alone knows
/// (torch_dtype).
nlohmann::json hf_config(const ModelConfig& config);
/// The inverse: model_config_from_json() of JSON that must have a model_type.
/// \throws FormatError naming `source` and the field whose value our models do not have
ModelConfig model_config_from_hf(const nlohmann::json& json, const std::string& source);

/// The config.json of a directory that is written: rotary positions of our families are spelled so that transformers 4
/// and 5 compute the same. Others stay. \return whether `json` changed
/// \throws FormatError naming `source` and the field where they cannot be
bool spell_rope_for_all(nlohmann::json& json, const std::string& source);

enum class Init {
  normal,
  zeros,
  ones,
  uniform,   ///< of [-std, std]
  row_norms  ///< of the matrix that it belongs to
};

/// Dtype of a parameter's elements in memory.
enum class Storage {
  model,    ///< in the type that the run asks for
  float32,  ///< whatever that is
  byte      ///< codes
};

/// One parameter, in the order of PyTorch's named_parameters() of the model.
struct ParameterSpec {
  std::string name;  ///< the state dict's key, e.g. transformer.h.0.ln_1.weight
  std::vector<std::int64_t> shape;
  Init init = Init::normal;
  double std = 0.02;       ///< of Init::normal; bound of Init::uniform
  bool decay = true;       ///< weight decay applies: matrices yes, vectors no (nanoGPT's rule)
  int block = -1;          ///< transformer block it belongs to; -1: outside the blocks (the root unit)
  bool embedding = false;  ///< a table of which a step uses some rows
  bool adapter = false;    ///< not the model's own: adapter_table()
  Storage storage = Storage::model;
  /// Matrices with the same number, not 0, read the same input: one product where they lie side by side.
  int same_input = 0;
  /// Part of a quantized matrix, and never trained: of its codes the matrix's elements, of its scales 0. Else -1.
  std::int64_t stands_for = -1;

  /// True for a matrix that can have an adapter and can be quantised to 4 bits.
  bool is_matrix_of_block() const { return block >= 0 && shape.size() == 2; }
};

/// All parameters; a tied head is listed once, under the embedding's name (transformer.wte.weight or
/// model.embed_tokens.weight).
std::vector<ParameterSpec> parameter_table(const ModelConfig& config);

/// Names without storage of their own and the parameter that each one shares: a tied lm_head.weight.
std::vector<std::pair<std::string, std::string>> tied_names(const ModelConfig& config);
/// The other name under which a file may hold the parameter `name` alone; empty: there is none. Writers that keep one
/// tensor of two names keep either.
std::string tied_name_of(const ModelConfig& config, const std::string& name);

/// Elements of all parameters, of a quantized matrix those that it has.
std::int64_t num_parameters(const std::vector<ParameterSpec>& table);

}  // namespace fsdp
