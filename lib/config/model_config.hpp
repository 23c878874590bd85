#pragma once
// What a model is: architecture, sizes, and the name, shape and start value of every parameter. Free of LibTorch.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace fsdp {

enum class Architecture { mingpt };

/// A decoder. Field names in JSON follow minGPT's config (n_layer, n_head, n_embd, n_hidden, vocab_size, block_size,
/// ...).
struct ModelConfig {
  Architecture architecture = Architecture::mingpt;
  std::int64_t num_layers = 12;
  std::int64_t num_heads = 12;
  std::int64_t embed_size = 768;
  std::int64_t ffn_hidden_size = 3072;
  std::int64_t vocab_size = 50257;
  std::int64_t block_size = 256;  ///< longest sequence (positions that have an embedding)
  double dropout = 0.0;
  double layer_norm_eps = 1e-5;

  /// \throws UsageError naming the sizes that cannot work together
  void validate() const;
};

/// \throws FormatError naming `source` and the field that is missing or wrong
ModelConfig model_config_from_json(const nlohmann::json& json, const std::string& source);
nlohmann::json model_config_to_json(const ModelConfig& config);
/// Reads DIR/config.json.
ModelConfig read_model_config(const std::filesystem::path& directory);

enum class Init { normal, zeros, ones };

/// One parameter, in the order of PyTorch's named_parameters() of the model.
struct ParameterSpec {
  std::string name;  ///< the state dict's key, e.g. transformer.h.0.ln_1.weight
  std::vector<std::int64_t> shape;
  Init init = Init::normal;
  double std = 0.02;  ///< of Init::normal
  bool decay = true;  ///< weight decay applies: matrices yes, vectors no (nanoGPT's rule)
  int block = -1;     ///< transformer block it belongs to; -1: outside the blocks (the root unit)
};

/// All parameters; a tied head is listed once, under the embedding's name (transformer.wte.weight).
std::vector<ParameterSpec> parameter_table(const ModelConfig& config);

/// Elements of all parameters.
std::int64_t num_parameters(const std::vector<ParameterSpec>& table);

/// Multiply-adds of matrix products that one token needs in forward and backward, times two:
/// 6 per matrix parameter (position embeddings excluded) plus causal attention. Source: PaLM, appendix B.
double flops_per_token(const ModelConfig& config, std::int64_t sequence_length);

}  // namespace fsdp
