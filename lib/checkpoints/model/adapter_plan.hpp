#pragma once
// Plans how an adapter directory, as peft writes it, acts on a base model: which matrices it changes and where its
// tensors are in the file. The programs that compute with an adapter (fsdp-eval, fsdp-finetune) and the one that merges
// it (fsdp-ckpt-convert) share this plan.
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/checkpoints/source/source.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/quantize_config.hpp"

namespace fsdp {

/// A module of the base model with a weight, such as model.layers.0.self_attn.q_proj.
struct BaseModule {
  std::string name;
  bool can_have_adapter = false;
  bool is_in_block = false;
  std::string other_type = {};  ///< the type of its weight if that is no floating-point type, else empty
  std::string tied_to = {};     ///< the module whose weight it shares; empty: it has its own
  std::int64_t rows = 0;        ///< of its weight; 0: not known
};

/// Whether a module is the token embedding of a minGPT or of a Llama's kind.
bool is_token_embedding(const std::string& module);

/// The modules of one of our models: the matrices of its blocks, embeddings and the head can have adapters.
std::vector<BaseModule> base_modules(const ModelConfig& config);

/// The adapter of one matrix or embedding: numbers of its tensors in the file.
struct AdapterParts {
  std::optional<std::size_t> a, b, b_bias, magnitude;
  std::optional<std::size_t> embedding_a, embedding_b;  ///< in place of a and b
  std::optional<std::size_t> rows;                      ///< of tokens, in place of the base's
  std::vector<std::int64_t> row_ids = {};               ///< these tokens
  LoraModule adapter = {};

  bool is_low_rank() const { return a || b || b_bias || magnitude || embedding_a || embedding_b; }
};

struct AdapterPlan {
  LoraConfig lora;             ///< its targets are the modules in `parts`, and its patterns have their whole names
  std::filesystem::path file;  ///< adapter_model.safetensors, or adapter_model.bin when that is absent
  std::shared_ptr<const Source> source;
  std::map<std::string, AdapterParts> parts;  ///< by module; a and b or rows are set, with DoRA also the magnitude
  /// Parameters of the base in whose place a tensor of the file stands (modules_to_save, bias), by their names.
  std::map<std::string, std::size_t> whole;
  /// Embedding and head as the file has them, frozen, in place of the base's: of a grown vocabulary, or beside adapters
  /// of their own (LoraConfig::vocabulary).
  std::map<std::string, std::size_t> tables;
  bool shares_adapter = false;  ///< head and embedding have one adapter (ensure_weight_tying), which is there twice
  bool unties = false;          ///< head and embedding of the base are one, and after the adapter two
  std::vector<std::string> remarks;  ///< parts of the directory that have no effect, for the user
};

/// Opens the directory as peft 0.21 does: a module has an adapter when target_modules names it and the file has tensors
/// for it. Names without the inner "model." (an adapter of the model without its head) are completed, and those of a
/// multimodal Gemma 3 are mapped to its language model. A run of
/// fsdp-finetune with adapters, or a checkpoint of the run, is an adapter, too. The caller must check the shapes, since
/// it knows those of the base. \throws FormatError naming a field that is not supported, a tensor that belongs to no
/// module of the base, or a module that cannot have an adapter; what open_source() throws
AdapterPlan plan_adapter(const std::filesystem::path& directory, const std::vector<BaseModule>& base);

/// Scores of the head that an adapter of a classifier or a reward model has whole (peft's task_type SEQ_CLS); 0: it has
/// none. \throws as plan_adapter()
std::int64_t scores_of_adapter(const std::filesystem::path& directory);

/// The same for a program that computes with model and adapter side by side. \throws FormatError naming the adapter and
/// what of it the model cannot compute with; what plan_adapter() throws
AdapterPlan plan_adapter_of_model(const std::filesystem::path& directory, const ModelConfig& config,
                                  const QuantizeConfig& quantize);

}  // namespace fsdp
