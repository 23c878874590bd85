#pragma once
// Low-rank adapters (LoRA: Hu et al., arXiv:2106.09685; rsLoRA: 2312.03732; DoRA: 2402.09353) for a model's matrices:
// their parameters, named as in peft. Free of LibTorch.
//
// y = x W^T + s (x A^T) B^T, where A is [rank, in] and B is [out, rank]. DoRA: y = m / |V| (x V^T), where V = W + s B
// A, |V| is the vector of V's row norms, and m is initialised to the row norms of W.
#include <cstdint>
#include <string>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

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

}  // namespace fsdp
