#pragma once
// Inputs and results of a small training run on thread ranks; engine_rig.hpp runs it.
#include "tests/support/reproducible_products.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/Parallel.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/engine/fsdp/engine.hpp"
#include "lib/engine/optim/optimizer.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/config/quantize_config.hpp"
#include "lib/models/config/trainable.hpp"
#include "tests/support/tensor_compare.hpp"
#include "tests/support/tries.hpp"

namespace fsdp::test {

/// The rows of one optimizer step, for all ranks and micro-batches.
struct StepRows {
  at::Tensor ids;      ///< int32 [R, L]
  at::Tensor targets;  ///< int32 [R, L]
  at::Tensor keys;     ///< int64 [R]; undefined without dropout
};

struct Setup {
  ModelConfig model;
  std::vector<at::Tensor> weights;  ///< float32, by parameter
  std::function<StepRows(int step)> rows;
  int steps = 3;
  int ranks = 1;
  int ranks_per_node = 0;  ///< 0: all
  int shard_group_size = 0;
  EnginePolicy policy;
  std::string wrap = "block";
  bool peer_memory = true;
  std::string scratch;  ///< directory of --offload-optimizer nvme; empty: in memory
  int accumulation = 1;
  /// Rows of each part (micro-batch 0 rank 0, micro-batch 0 rank 1, ...); empty: equal parts.
  std::vector<std::int64_t> share;
  double lr = 1e-3;
  double clip = 1.0;
  double loss_scale = 1.0;  ///< the engine divides gradients by it
  bool trace = false;
  FreezeOptions freeze;
  LoraConfig lora;
  QuantizeConfig quantize;
  std::optional<c10::ScalarType> compute_dtype;
  OptimizerOptions optimizer;
};

struct Outcome {
  std::vector<double> losses;                    ///< mean per token over all ranks, before each update
  std::vector<std::vector<double>> rank_losses;  ///< [step][rank]
  std::vector<double> norms;                     ///< before clipping
  std::vector<at::Tensor> parameters;            ///< full, after the last step
  std::vector<at::Tensor> gradients;             ///< full, of the last step
  std::vector<CommCounts> counts;                ///< by rank
  std::vector<std::string> traces;               ///< by rank
  bool used_peer_memory = false;
};

inline ModelConfig tiny_config() {
  ModelConfig config;
  config.num_layers = 2;
  config.num_heads = 2;
  config.embed_size = 16;
  config.ffn_hidden_size = 28;
  config.vocab_size = 97;
  config.block_size = 3;  // fewer position rows than ranks
  return config;
}

inline std::vector<at::Tensor> random_weights(const ModelConfig& config) {
  at::manual_seed(1234);
  std::vector<at::Tensor> weights;
  for (const auto& spec : parameter_table(config)) {
    weights.push_back(at::randn(spec.shape) * 0.15 + (spec.init == Init::ones ? 1.0 : 0.0));
  }
  return weights;
}

/// Returns `rows` random rows per step, equal in every call; a few targets are ignored.
inline std::function<StepRows(int)> random_rows(const ModelConfig& config, std::int64_t rows, int steps,
                                                std::int64_t length) {
  at::manual_seed(99);
  std::vector<StepRows> all;
  for (int s = 0; s < steps; ++s) {
    auto targets = at::randint(0, config.vocab_size, {rows, length}, at::kInt);
    targets.view({-1}).narrow(0, s, 2).fill_(-1);
    all.push_back({at::randint(0, config.vocab_size, {rows, length}, at::kInt), targets,
                   at::randint(0, std::numeric_limits<std::int64_t>::max(), {rows}, at::kLong)});
  }
  return [all](int step) { return all.at(static_cast<std::size_t>(step)); };
}

inline Setup tiny_setup() {
  Setup setup;
  setup.model = tiny_config();
  setup.weights = random_weights(setup.model);
  setup.rows = random_rows(setup.model, 12, setup.steps, setup.model.block_size);
  return setup;
}

/// Compares losses, norms, parameters and last gradients bit for bit.
inline bool same_outcome(const Outcome& a, const Outcome& b) {
  bool same = a.losses == b.losses && a.norms == b.norms;
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    same = same && same_bits(a.parameters[i], b.parameters[i]) && same_bits(a.gradients[i], b.gradients[i]);
  }
  return same;
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  Worst worst;
  for (std::size_t i = 0; i < a.size(); ++i) worst(std::abs(a[i] - b.at(i)));
  return worst.value;
}

}  // namespace fsdp::test
