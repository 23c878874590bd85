#pragma once
// Configuration of a model: architecture, sizes, and the name, shape and initial value of every parameter. Free of
// LibTorch.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/types/index.hpp"

namespace fsdp {

/// Norm of queries and keys before the rotary embedding.
enum class HeadNorm {
  none,
  per_head,  ///< a norm per head, all with one weight of head_width() elements
  all_heads  ///< one norm over all heads of a token
};

/// Traits of a model of the Llama family. The defaults are Llama's.
struct DecoderTraits {
  std::string family = "llama";    ///< config.json's model_type
  bool qkv_bias = false;           ///< on q, k and v, not on the output projection
  bool fused_projections = false;  ///< one matrix qkv_proj = [q; k; v] and one gate_up_proj = [gate; up]
  bool pre_norms = true;           ///< before attention and feed-forward
  bool post_norms = false;         ///< after attention and feed-forward, before the residual is added
  bool offset_norms = false;       ///< RMSNorms multiply by 1 + weight
  HeadNorm head_norm = HeadNorm::none;
  bool gelu = false;               ///< the gate's activation is tanh-GELU instead of SiLU
  bool scaled_embeddings = false;  ///< embeddings times sqrt(embed_size), rounded to the embeddings' dtype
  double attention_softcap = 0;    ///< scores become cap tanh(score / cap); 0: no cap
  double logit_softcap = 0;
  double query_scalar = 0;         ///< scores are multiplied by query_scalar^-1/2; 0: head_width()
  double rotary_fraction = 1;      ///< share of a head's elements, from the first on, that are rotated
  std::int64_t window = 0;         ///< positions a query sees in sliding layers, its own included; 0: all
  std::vector<bool> sliding = {};  ///< by layer; empty: no layer slides
  double local_rope_theta = 0;     ///< rope_theta of sliding layers, which have no scaling; 0: as in full layers
  std::int64_t padding_id = -1;    ///< this id's embedding gets no gradient from lookups; negative: none
  // Falcon only.
  bool alibi = false;        ///< scores get a bias by the key's position in place of rotary positions
  int parallel_norms = 0;    ///< norms of the block's input, which both halves read; 0: one half follows the other
  bool new_decoder = false;  ///< JSON's new_decoder_architecture

  bool slides(std::int64_t layer) const { return window > 0 && !sliding.empty() && element(sliding, layer); }
};

enum class Architecture {
  mingpt,
  llama,  ///< Llama family: rotary positions, RMSNorm, gated feed-forward; see DecoderTraits
  falcon  ///< LayerNorm, GELU, both halves of a block in parallel; see DecoderTraits
};

/// A decoder. Field names in JSON follow the architecture's own config: minGPT's n_layer, n_head, n_embd, n_hidden,
/// vocab_size, block_size, ... or, for other families, those of the model's config in Hugging Face's transformers.
struct ModelConfig {
  Architecture architecture = Architecture::mingpt;
  std::int64_t num_layers = 12;
  std::int64_t num_heads = 12;
  std::int64_t embed_size = 768;
  std::int64_t ffn_hidden_size = 3072;
  std::int64_t vocab_size = 50257;
  std::int64_t block_size = 256;  ///< longest sequence (number of position embeddings)
  double dropout = 0.0;
  double layer_norm_eps = 1e-5;  ///< Llama: rms_norm_eps; Falcon: layer_norm_epsilon
  // Not of minGPT.
  std::int64_t num_kv_heads = 0;     ///< key and value heads; 0: num_heads
  std::int64_t head_size = 0;        ///< JSON's head_dim; 0: embed_size / num_heads
  double rope_theta = 10000.0;       ///< base of the rotary embedding's wavelengths
  std::string rope_scaling;          ///< JSON's rope_scaling as compact JSON text; empty: none
  bool tie_word_embeddings = false;  ///< the head is the token embedding (minGPT: always)
  /// Not tied, and files of the weights that lack the head have the embedding for it: of a tied model, whose two sides
  /// an adapter trains apart.
  bool head_starts_as_embedding = false;
  bool attention_bias = false;  ///< on q, k, v and the output projection
  bool mlp_bias = false;
  DecoderTraits traits;
  /// Not empty: the model scores a text, by its last token and a matrix score.weight (score_head.hpp), in place of
  /// predicting the next token. Names of the scores: the labels of a classifier, or one name for a reward.
  std::vector<std::string> labels;
  /// With labels: a text's last token is the last one with another id than this. Negative: the last one.
  std::int64_t pad_token_id = -1;
  bool score_is_new = false;  ///< the files that a run begins with have a language model's head, and no score.weight
  /// Which tokens begin and end a text, as compact JSON text: an id, a list of ids, or null. Empty: not said. Not used
  /// in computing: exports keep them, since transformers' generate() stops at the latter.
  std::string bos_token_id, eos_token_id;
  std::string source;  ///< file it was read from, for messages; empty: not read from a file

  std::int64_t kv_heads() const { return num_kv_heads == 0 ? num_heads : num_kv_heads; }
  std::int64_t head_width() const { return head_size == 0 ? embed_size / num_heads : head_size; }
  /// Number of rotated elements of a head, as transformers counts; if odd, one more element is rotated.
  std::int64_t rotary_width() const {
    return static_cast<std::int64_t>(static_cast<double>(head_width()) * traits.rotary_fraction);
  }
  std::int64_t rotary_pairs() const { return (rotary_width() + 1) / 2; }
  bool has_scores() const { return !labels.empty(); }
  /// Numbers that the head makes of a token.
  std::int64_t outputs() const { return has_scores() ? static_cast<std::int64_t>(labels.size()) : vocab_size; }
  bool has_qkv_bias() const { return attention_bias || traits.qkv_bias; }

  /// \throws RequestError naming inconsistent sizes
  void validate() const;
};

/// Accepts our own fields, and Hugging Face's for model_type gpt2 (a minGPT, whose directory keeps the matrices
/// transposed), for the families in family.cpp, and for a multimodal Gemma 3 (its language model).
/// \throws FormatError naming `source` and the field that is missing, invalid, or changes the model in an unsupported
///         way
ModelConfig model_config_from_json(const nlohmann::json& json, const std::string& source);
nlohmann::json model_config_to_json(const ModelConfig& config);
/// Reads DIR/config.json, or the file itself. The ids of a generation_config.json beside it win, as in transformers.
ModelConfig read_model_config(const std::filesystem::path& directory_or_file);

/// Returns the config.json with which transformers opens the model: GPT2LMHeadModel for minGPT, whose GELU is
/// GPT-2's gelu_new, and the family's class for others. Pure ASCII; the caller adds torch_dtype, which the
/// configuration does not know.
nlohmann::json hf_config(const ModelConfig& config);
/// Inverse of hf_config(): model_config_from_json() of JSON that must have a model_type.
/// \throws FormatError naming `source` and a field whose value is not supported
ModelConfig model_config_from_hf(const nlohmann::json& json, const std::string& source);

/// Returns the config.json of the language model in that of a multimodal Gemma 3, as model_type gemma3_text; null for
/// other JSON. \throws FormatError naming `source` if there is another model in text_config
nlohmann::json text_model_config(const nlohmann::json& json, const std::string& source);

/// Rewrites the rotary positions in a config.json of a supported family so that transformers 4 and 5 compute the same
/// frequencies. Leaves other model types unchanged. \return whether `json` changed
/// \throws FormatError naming `source` and the field if no spelling suits both versions
bool spell_rope_for_all(nlohmann::json& json, const std::string& source);

enum class Init {
  normal,
  zeros,
  ones,
  uniform,    ///< in [-std, std]
  row_norms,  ///< row norms of the matrix that the parameter belongs to
  token_rows  ///< rows of the embedding or head that the parameter belongs to
};

/// Dtype of a parameter's elements in memory.
enum class Storage {
  model,    ///< the dtype that the run selects
  float32,  ///< float32 in every run
  byte      ///< quantization codes
};

/// One parameter, in the order of PyTorch's named_parameters() of the model.
struct ParameterSpec {
  std::string name;  ///< the state dict's key, e.g. transformer.h.0.ln_1.weight
  std::vector<std::int64_t> shape;
  Init init = Init::normal;
  double std = 0.02;       ///< standard deviation of Init::normal; bound of Init::uniform
  bool decay = true;       ///< weight decay applies: matrices yes, vectors no (nanoGPT's rule)
  int block = -1;          ///< transformer block of the parameter; -1: outside of the blocks (the root unit)
  bool embedding = false;  ///< a step reads only some rows
  bool adapter = false;    ///< belongs to an adapter, see adapter_table()
  bool saved = false;      ///< of the base, and trained and kept with adapters, see mark_saved_parameters()
  bool kept = false;       ///< of the base, frozen and kept with adapters, whose vocabulary is not the base's
  Storage storage = Storage::model;
  /// Matrices with equal numbers other than 0 read the same input; if adjacent in memory, they form one product.
  int same_input = 0;
  /// For parts of a quantized matrix, which are never trained: number of the matrix's elements for codes, 0 for scales;
  /// otherwise -1.
  std::int64_t stands_for = -1;

  /// True for a matrix that can have an adapter and can be quantised to 4 bits.
  bool is_matrix_of_block() const { return block >= 0 && shape.size() == 2; }
  /// True for what is trained in a model with adapters.
  bool is_trained_with_adapter() const { return adapter || saved; }
  /// True for what its checkpoints and its adapters' files hold.
  bool with_adapter() const { return adapter || saved || kept; }
};

/// Returns all parameters; a tied head is listed once, under the embedding's name (transformer.wte.weight or
/// model.embed_tokens.weight).
std::vector<ParameterSpec> parameter_table(const ModelConfig& config);

/// The parameter of parameter_table() that the head multiplies with.
std::string head_parameter(const ModelConfig& config);

/// Returns names without storage of their own, each with the parameter that it shares, such as a tied lm_head.weight.
std::vector<std::pair<std::string, std::string>> tied_names(const ModelConfig& config);
/// Returns the other name under which a file may hold the parameter `name`; empty if there is none. Of two tied names,
/// some writers keep one and some the other.
std::string tied_name_of(const ModelConfig& config, const std::string& name);

/// Returns the number of elements of all parameters; a quantized matrix counts the elements that it stands for.
std::int64_t num_parameters(const std::vector<ParameterSpec>& table);

}  // namespace fsdp
