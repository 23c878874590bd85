#pragma once
// Reads and writes adapter_config.json, peft's description of an adapter. Free of LibTorch.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

// Low-rank adapters (LoRA: Hu et al., arXiv:2106.09685; rsLoRA: 2312.03732; DoRA: 2402.09353) for a model's matrices:
// their parameters, named as in peft. Free of LibTorch.
//
// y = x W^T + s (x A^T) B^T, where A is [rank, in] and B is [out, rank]. DoRA: y = m / |V| (x V^T), where V = W + s B
// A, |V| is the vector of V's row norms, and m is initialised to the row norms of W.

struct LoraConfig {
  std::int64_t rank = 0;  ///< 0: no adapters
  double alpha = 16;
  double dropout = 0;  ///< dropout probability of the adapters' input in training
  /// Modules such as q_proj, mlp.c_proj or model.layers.0.mlp.up_proj; "all": all matrices of the blocks.
  std::vector<std::string> targets{"all"};
  bool rslora = false;  ///< s = alpha / sqrt(rank) instead of alpha / rank
  bool dora = false;

  bool enabled() const { return rank > 0; }
  /// \return the factor s of the adapters' output
  double scale() const;
};

/// \return the names of modules in a block that can have adapters, in the order of the block's parameters, without
/// duplicates
std::vector<std::string> lora_modules(const ModelConfig& config);
/// \return the modules that have adapters, in the order of lora_modules(), each by its shortest unambiguous name.
/// \throws UsageError naming the choices, or the unsupported combination
std::vector<std::string> lora_targets(const ModelConfig& config, const LoraConfig& lora);

/// \return the adapters' parameters, block by block: lora_A, lora_B and with DoRA lora_magnitude_vector of each target,
/// all float32. Empty without adapters. \throws UsageError
std::vector<ParameterSpec> adapter_table(const ModelConfig& config, const LoraConfig& lora);

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";
/// Weights file of older peft versions; read if the newer file is absent.
inline constexpr const char* kAdapterPickle = "adapter_model.bin";
/// Prefix of parameter names in the weights file.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

struct AdapterConfig {
  LoraConfig lora;      ///< targets: the list target_modules; each entry is a module's name or the end of one
  std::string pattern;  ///< target_modules as a regular expression for whole names; empty: target_modules is a list
  bool starts_by_chance = false;  ///< init_lora_weights is false, so a new adapter changes the model's output
  bool all_linear = false;        ///< target_modules is "all-linear": all matrices of the blocks
  /// Prefixes of tensors in the adapter's file that are used in training only and do not affect the output.
  std::vector<std::string> training_parts;
};

/// Reads DIR/adapter_config.json. \throws FormatError naming a field whose value is not supported, or a field that is
/// set and unknown to peft
AdapterConfig read_adapter_config(const std::filesystem::path& directory);

/// Reads the content of an adapter_config.json. \param source  name of the file, for messages
AdapterConfig adapter_config_from_json(const nlohmann::json& json, const std::string& source);

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
