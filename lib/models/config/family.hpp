#pragma once
// Facts about families of models that the rest of the program asks for, beside the sizes and traits of a ModelConfig.
// The rows are in family.cpp.
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

/// A row. The defaults are those of Llama's kind.
struct FamilyFacts {
  std::string_view type;   ///< model_type of config.json: "mingpt", "qwen3"
  std::string_view title;  ///< for messages: "minGPT or GPT-2"

  // Parameters.
  std::string_view embedding = "model.embed_tokens.weight";  ///< of tokens
  std::string_view head = "lm_head.weight";                  ///< its name in files also where it is tied
  std::string_view mark = "model.embed_tokens.weight";       ///< one that no other kind of model has
  std::string_view blocks = "model.layers.";                 ///< prefix of those of blocks, before the number
  bool is_always_tied = false;                               ///< the head is the embedding
  bool tied = false;                                         ///< default of tie_word_embeddings
  /// model_type under which transformers has the model with matrices [in, out] (Conv1D), where ours are [out, in], and
  /// with names of its own; empty: transformers' names and matrices are ours.
  std::string_view conv1d_type = "";

  // Tokenizers.
  bool has_built_in_tokenizer = false;  ///< GPT-2's, which is part of the program, where no other is known
  bool takes_sentencepiece = true;      ///< tokenizer.model, where there is one, rather than tokenizer.json

  // Files of other programs.
  std::string_view gguf = "";  ///< llama.cpp's general.architecture; empty: there are no GGUF files of the family
  bool in_megatron = false;    ///< a dense GPTModel of Megatron-core has its tensors
  bool in_metas_files = true;  ///< Meta's own files have its tensors; there, rows of a head have another order
};

const FamilyFacts& facts_of(const ModelConfig& config);
/// Returns the facts of a model_type; null if it is not supported.
const FamilyFacts* find_facts(std::string_view type);
/// Returns the types of the families for which a fact is true.
std::vector<std::string_view> types_with(bool FamilyFacts::*fact);

/// Returns the names that families give to the embedding of tokens.
const std::vector<std::string_view>& token_embeddings();
/// True for the name of an embedding of tokens or of a head.
bool is_token_table(std::string_view parameter);
/// Returns the parameters each of which shows that a state dict holds a model, one for each kind of model.
const std::vector<std::string_view>& model_marks();

/// Returns what names of blocks' parameters begin with, before the number.
const std::vector<std::string_view>& block_prefixes();

/// Returns the names of the parameters in the order of named_parameters(), and the head's, for a state dict whose names
/// are those of a supported model; empty: they are not.
std::vector<std::string> parameter_order(const std::function<bool(const std::string&)>& has_name);

}  // namespace fsdp
