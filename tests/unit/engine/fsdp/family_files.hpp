#pragma once
// Models and rows of tests/fixtures/families, as setups of the engine tests.
#include <cstdio>

#include "tests/unit/engine/fsdp/fixture_files.hpp"

namespace fsdp::test {

inline constexpr const char* kFamilies[] = {
    "mistral_window", "mistral_full", "qwen2_tied",    "qwen2_untied", "qwen2_window", "qwen3",        "gemma",
    "gemma2",         "gemma3",       "gemma3_scaled", "gpt2",         "phi3",         "phi3_partial", "olmo2"};
/// a: no padding; b: padded on the right, with a prompt that is not a target; c: padding id inside the text (some
/// models).
inline constexpr const char* kFamilyCases[] = {"a", "b", "c"};

inline std::filesystem::path family_folder(const std::string& model) {
  return std::filesystem::path(FSDP_FIXTURE_DIR) / "families" / model;
}

inline bool has_case(const std::string& model, const char* which) {
  return read_json(family_folder(model) / "inputs.json").contains(which);
}

/// True for GPT-2's matrices of blocks, which the Hub stores transposed.
inline bool is_turned(const ModelConfig& config, const ParameterSpec& spec) {
  return config.architecture == Architecture::mingpt && spec.block >= 0 && spec.shape.size() == 2;
}

/// Returns a gradient in transformers' layout.
inline at::Tensor as_there(const ModelConfig& config, const ParameterSpec& spec, const at::Tensor& tensor) {
  return is_turned(config, spec) ? tensor.t().contiguous() : tensor;
}

inline Setup start_of(const std::string& model, const std::string& config_file = "config.json") {
  at::set_num_threads(1);
  Setup setup;
  setup.model = read_model_config(family_folder(model) / config_file);
  setup.model.dropout = 0;  // the fixtures were computed in eval mode
  const SafetensorsReader stored(family_folder(model) / "model.safetensors");
  for (const auto& spec : parameter_table(setup.model))
    setup.weights.push_back(as_there(setup.model, spec, read_tensor(stored, spec.name).to(at::kFloat)));
  setup.clip = 1e9;  // no clipping
  return setup;
}

/// Returns a setup with `steps` steps on the rows of one case.
inline Setup steps_on(const std::string& model, const char* which, int steps = 1) {
  auto setup = start_of(model);
  const auto inputs = read_json(family_folder(model) / "inputs.json").at(which);
  const auto ids = int_tensor(inputs.at("input_ids")), labels = int_tensor(inputs.at("labels"));
  // The last position has no target.
  const StepRows rows{
      ids, at::cat({labels.narrow(1, 1, labels.size(1) - 1), at::full({labels.size(0), 1}, -100, at::kInt)}, 1), {}};
  setup.rows = [rows](int) { return rows; };
  setup.steps = steps;
  setup.lr = 0.0;
  return setup;
}

/// Calls body(row, position, name) for each token whose logits expected.json has as NAME_first16. \return their number
template <typename Body>
int for_kept_logits(const nlohmann::json& expected, const Body& body) {
  int kept = 0;
  for (const auto& [key, value] : expected.items()) {
    int row = 0, position = 0;
    if (std::sscanf(key.c_str(), "logits_%d_pos%d_first16", &row, &position) != 2) continue;
    body(row, position, key.substr(0, key.rfind('_')));
    ++kept;
  }
  return kept;
}

}  // namespace fsdp::test
