#pragma once
// Models and rows of tests/fixtures/families, as setups.
#include "tests/unit/fsdp/fixture_files.hpp"

namespace fsdp::test {

inline std::filesystem::path family_folder(const std::string& model) {
  return std::filesystem::path(FSDP_FIXTURE_DIR) / "families" / model;
}

/// GPT-2 on the Hub multiplies from the other side.
inline bool is_turned(const ModelConfig& config, const ParameterSpec& spec) {
  return config.architecture == Architecture::mingpt && spec.block >= 0 && spec.shape.size() == 2;
}

/// A gradient as transformers has it.
inline at::Tensor as_there(const ModelConfig& config, const ParameterSpec& spec, const at::Tensor& tensor) {
  return is_turned(config, spec) ? tensor.t().contiguous() : tensor;
}

inline Setup start_of(const std::string& model, const std::string& config_file = "config.json") {
  at::set_num_threads(1);
  Setup setup;
  setup.model = read_model_config(family_folder(model) / config_file);
  setup.model.dropout = 0;  // the fixtures are of models that evaluate
  const SafetensorsReader stored(family_folder(model) / "model.safetensors");
  for (const auto& spec : parameter_table(setup.model))
    setup.weights.push_back(as_there(setup.model, spec, read_tensor(stored, spec.name).to(at::kFloat)));
  setup.clip = 1e9;  // gradients stay as they are
  return setup;
}

/// One step on the rows of one case, or `steps` of them.
inline Setup steps_on(const std::string& model, const char* which, int steps = 1) {
  auto setup = start_of(model);
  const auto inputs = read_json(family_folder(model) / "inputs.json").at(which);
  const auto ids = int_tensor(inputs.at("input_ids")), labels = int_tensor(inputs.at("labels"));
  // The one after the last is not there to be predicted.
  const StepRows rows{
      ids, at::cat({labels.narrow(1, 1, labels.size(1) - 1), at::full({labels.size(0), 1}, -100, at::kInt)}, 1), {}};
  setup.rows = [rows](int) { return rows; };
  setup.steps = steps;
  setup.lr = 0.0;
  return setup;
}

}  // namespace fsdp::test
