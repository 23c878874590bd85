#pragma once
// Reads and writes adapter_config.json, peft's description of an adapter. Free of LibTorch.
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/types/named_values.hpp"
#include "lib/models/config/model_config.hpp"

namespace fsdp {

// Low-rank adapters (LoRA: Hu et al., arXiv:2106.09685; rsLoRA: 2312.03732; DoRA: 2402.09353) for a model's matrices:
// their parameters, named as in peft. Free of LibTorch.
//
// y = x W^T + s (x A^T) B^T, where A is [rank, in] and B is [out, rank]. DoRA: y = m / |V| (x V^T), where V = W + s B
// A, |V| is the vector of V's row norms, and m is initialised to the row norms of W.

/// Which biases of the base are trained beside adapters.
enum class LoraBias {
  none,
  lora_only,  ///< those of modules with adapters
  all
};
inline constexpr std::array<NamedValue<LoraBias>, 3> kLoraBiases{
    {{"none", LoraBias::none}, {"lora_only", LoraBias::lora_only}, {"all", LoraBias::all}}};

/// Fields are those of peft's LoraConfig; adapter_rules.hpp says how they choose modules.
struct LoraConfig {
  std::int64_t rank = 0;  ///< 0: no adapters
  double alpha = 16;
  double dropout = 0;  ///< dropout probability of the adapters' input in training
  /// Modules such as q_proj, mlp.c_proj or model.layers.0.mlp.up_proj; "all": all matrices of the blocks. An entry with
  /// signs that no name has (is_name_pattern()) makes the list one regular expression for whole names, split at commas.
  std::vector<std::string> targets{"all"};
  bool rslora = false;  ///< s = alpha / sqrt(rank) instead of alpha / rank
  bool dora = false;
  std::vector<std::string> exclude = {};  ///< exclude_modules, in the form of `targets`
  std::vector<std::int64_t> layers = {};  ///< layers_to_transform; empty: all
  std::vector<std::string> layers_patterns = {};
  /// Regular expressions for ends of names, with rank or alpha of the modules that match; the first match counts.
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  LoraBias bias = LoraBias::none;
  bool lora_bias = false;  ///< adapters have a bias: y = x W^T + s ((x A^T) B^T + b)
  /// Ends of the names of modules whose own parameters are trained whole and kept with the adapters. Of two tied
  /// weights each gets a copy of its own, unless ensure_weight_tying keeps them one.
  std::vector<std::string> modules_to_save = {};
  bool ensure_weight_tying = false;
  /// Numbers of tokens whose rows are trained, by ends of the names of embedding or head (trainable_token_indices). The
  /// rows of a tied embedding are the head's, too. "": the embedding.
  std::map<std::string, std::vector<std::int64_t>> token_rows = {};
  /// Rows of embedding and head where they are kept with the adapters, because the base's are others. 0: they are the
  /// base's.
  std::int64_t vocabulary = 0;
  std::vector<std::string> tables = {};  ///< which weights of the two are kept; empty: both

  bool operator==(const LoraConfig&) const = default;

  bool enabled() const { return rank > 0; }
  /// \return the factor s of the adapters' output
  double scale() const { return scale(rank, alpha); }
  double scale(std::int64_t of_rank, double of_alpha) const;
};

/// In LoraConfig::token_rows of a command line: the tokens that --add-tokens adds.
inline constexpr std::int64_t kNewTokens = -1;

/// Whether an entry of LoraConfig::targets is a regular expression rather than a name.
bool is_name_pattern(const std::string& target);

/// The adapter of one module.
struct LoraModule {
  std::int64_t rank = 0;
  double alpha = 0;
  double scale = 0;  ///< factor s of the adapter's output
};

/// \return the names of modules in a block that can have adapters, in the order of the block's parameters, without
/// duplicates
std::vector<std::string> lora_modules(const ModelConfig& config);
/// \return the modules that have adapters, in the order of lora_modules(), each by its shortest unambiguous name.
/// \throws RequestError naming the choices, or the unsupported combination
std::vector<std::string> lora_targets(const ModelConfig& config, const LoraConfig& lora);
/// \return the modules that have adapters, matrices, embedding or head, by whole names.
/// \throws RequestError as lora_targets()
std::map<std::string, LoraModule> adapted_modules(const ModelConfig& config, const LoraConfig& lora);

/// \return the tokens whose rows are trained, by whole names of embedding or head. \throws RequestError
std::map<std::string, std::vector<std::int64_t>> trained_rows(const ModelConfig& config, const LoraConfig& lora);
/// Parts of an adapter's names, after the module.
inline constexpr const char* kTokenRows = ".token_adapter.trainable_tokens_delta";
inline constexpr const char* kEmbeddingA = ".lora_embedding_A";
inline constexpr const char* kEmbeddingB = ".lora_embedding_B";

/// \return the adapters' parameters, block by block: lora_A, lora_B and with DoRA lora_magnitude_vector of each target,
/// all float32; of an embedding lora_embedding_A and _B, and trained rows. Empty without adapters. \throws RequestError
std::vector<ParameterSpec> adapter_table(const ModelConfig& config, const LoraConfig& lora);

/// \return the model as its adapters need it: with their vocabulary, and without tied weights where one of the two is
/// trained by itself
ModelConfig adapted_model(const ModelConfig& config, const LoraConfig& lora);
/// Marks the parameters of a base that are trained and kept with adapters (ParameterSpec::with_adapter).
/// \param table  parameter_table() or quantized_table() of adapted_model(). \throws RequestError naming a parameter
/// that cannot be trained, or a name that means none
void mark_saved_parameters(std::vector<ParameterSpec>& table, const ModelConfig& config, const LoraConfig& lora);

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";
/// Weights file of older peft versions; read if the newer file is absent.
inline constexpr const char* kAdapterPickle = "adapter_model.bin";
/// Prefix of parameter names in the weights file.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

struct AdapterConfig {
  LoraConfig lora;                ///< targets: the field target_modules
  bool starts_by_chance = false;  ///< init_lora_weights is false, so a new adapter changes the model's output
  /// Prefixes of tensors in the adapter's file that are used in training only and do not affect the output.
  std::vector<std::string> training_parts;

  bool operator==(const AdapterConfig&) const = default;
};

/// Reads DIR/adapter_config.json. \throws FormatError naming a field whose value is not supported, or a field that is
/// set and unknown to peft
AdapterConfig read_adapter_config(const std::filesystem::path& directory);

/// Reads the content of an adapter_config.json. \param source  name of the file, for messages
AdapterConfig adapter_config_from_json(const nlohmann::json& json, const std::string& source);

/// Takes what a run's checkpoint says of embedding and head beside its adapters. \param data  of run.json
void take_vocabulary(const nlohmann::json& data, LoraConfig& lora);

/// Whether DIR contains adapter_config.json and an adapter's weights.
bool has_adapter(const std::filesystem::path& directory);
/// \return a notice that the adapter beside a folder's weights is ignored, although transformers would apply it, and
/// how to use it; empty for a folder without an adapter
std::vector<std::string> adapter_left_out(const std::filesystem::path& directory);
/// \param path  path given as a model. \throws FormatError when the path is an adapter without a model
void refuse_adapter_alone(const std::filesystem::path& path);

/// Formats an adapter's config so that PeftModel.from_pretrained() can read it. \param base  name or folder of the
/// model
nlohmann::json adapter_config_to_json(const ModelConfig& config, const LoraConfig& lora, const std::string& base);

}  // namespace fsdp
