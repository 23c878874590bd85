#pragma once
// Low-rank adapters (LoRA: Hu et al., arXiv:2106.09685; rsLoRA: 2312.03732; DoRA: 2402.09353) of a model's matrices:
// what is trained in place of the matrices, and how peft names it. Free of LibTorch.
//
// y = x W^T + s (x A^T) B^T, where A is [rank, in] and B [out, rank]. DoRA: y = m / |V| (x V^T), where V = W + s B A,
// |V| are the lengths of its rows, and m starts as those of W.
#include <cstdint>
#include <string>
#include <vector>

#include "lib/models/config/model_config.hpp"

namespace fsdp {

struct LoraConfig {
  std::int64_t rank = 0;  ///< 0: no adapters
  double alpha = 16;
  double dropout = 0;  ///< of the adapters' input, while training
  /// Modules such as q_proj, mlp.c_proj or model.layers.0.mlp.up_proj; "all": every matrix of the blocks.
  std::vector<std::string> targets{"all"};
  bool rslora = false;  ///< s = alpha / sqrt(rank) in place of alpha / rank
  bool dora = false;

  bool enabled() const { return rank > 0; }
  /// s
  double scale() const;
};

/// Modules of a block that can have adapters, in the order of its parameters, each name once.
std::vector<std::string> lora_modules(const ModelConfig& config);
/// Those that do, in that order, each by the shortest name that means no other.
/// \throws UsageError naming the choices, or what cannot be
std::vector<std::string> lora_targets(const ModelConfig& config, const LoraConfig& lora);

/// The adapters' parameters, block by block: lora_A, lora_B and with DoRA lora_magnitude_vector of each target, all
/// float32. Empty without adapters. \throws UsageError
std::vector<ParameterSpec> adapter_table(const ModelConfig& config, const LoraConfig& lora);

}  // namespace fsdp
