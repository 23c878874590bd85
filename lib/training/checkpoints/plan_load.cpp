#include "lib/training/checkpoints/plan_load.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "lib/base/error.hpp"
#include "lib/training/checkpoints/model_sizes.hpp"

namespace fsdp {
namespace {

constexpr const char* kTransposed =
    ": transposed, as GPT-2's are: name its directory with the config.json, or make a minGPT of it (fsdp-ckpt-convert "
    "--map gpt2-to-mingpt)";

void check_fit(const SourceTensor& tensor, const Shape& shape, const std::filesystem::path& path) {
  if (tensor.shape != shape) {
    const bool transposed = tensor.shape.size() == 2 && shape == Shape{tensor.shape[1], tensor.shape[0]};
    throw FormatError(fmt::format("{}: '{}' has shape [{}], the model needs [{}]{}", path.string(), tensor.name,
                                  fmt::join(tensor.shape, ", "), fmt::join(shape, ", "),
                                  transposed ? kTransposed : ""));
  }
  if (!is_loadable(tensor.dtype)) {
    throw FormatError(fmt::format("{}: '{}' is {}, a parameter must be float64, float32, bfloat16 or float16",
                                  path.string(), tensor.name, torch_name(tensor.dtype)));
  }
}

/// Buffers that some writers store beside the parameters: they follow from config.json.
bool is_known_buffer(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

/// A tensor without a place means that config.json describes another model.
void check_all_used(const Source& source, const std::filesystem::path& directory, const ModelConfig& config,
                    const std::map<std::string, StoredNf4>& stored) {
  std::set<std::string> known;
  for (const auto& spec : parameter_table(config)) known.insert(spec.name);
  for (const auto& [name, original] : tied_names(config)) known.insert(name);
  for (const auto& tensor : source.tensors()) {
    if (known.contains(tensor.name) || is_known_buffer(tensor.name) || is_part_of(stored, tensor.name)) continue;
    throw FormatError(directory.string() + ": tensor '" + tensor.name +
                      "' has no place in the model that config.json describes");
  }
}

void check_stored(const StoredNf4& stored, const ParameterSpec& spec, const QuantizeConfig& quantize,
                  const std::filesystem::path& directory) {
  if (!spec.is_matrix_of_block())
    throw FormatError(directory.string() + ": '" + spec.name + "' is in 4 bits, which only matrices of blocks can be");
  if (stored.shape != spec.shape)
    throw FormatError(fmt::format("{}: '{}' has shape [{}], the model needs [{}]", directory.string(), spec.name,
                                  fmt::join(stored.shape, ", "), fmt::join(spec.shape, ", ")));
  if (stored.nested_absmax.has_value() != quantize.double_quant)
    throw FormatError(fmt::format("{}: '{}' is stored {} double quantisation, config.json says otherwise",
                                  directory.string(), spec.name, stored.nested_absmax ? "with" : "without"));
}

/// \param number_of  a tensor of `source`, by the name of an adapter's parameter; nothing: there is none
template <typename NumberOf>
LoadPlan plan_each_adapter(const std::vector<ParameterSpec>& table, const Source& source,
                           const std::filesystem::path& path, const NumberOf& number_of) {
  LoadPlan plan;
  plan.path = path;
  plan.first = static_cast<std::size_t>(
      std::find_if(table.begin(), table.end(), [](const auto& spec) { return spec.adapter; }) - table.begin());
  for (auto i = plan.first; i < table.size(); ++i) {
    const std::optional<std::size_t> tensor = number_of(table[i].name);
    if (!tensor) throw FormatError(fmt::format("{}: the adapter's '{}' is missing", path.string(), table[i].name));
    check_fit(source.tensors()[*tensor], table[i].shape, path);
    plan.weights.push_back(*tensor);
  }
  return plan;
}

}  // namespace

bool is_loadable(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

LoadPlan plan_weights(const Checkpoint& checkpoint, const ModelConfig& config) {
  LoadPlan plan;
  plan.path = checkpoint.path();
  const auto& tensors = checkpoint.source().tensors();
  const auto table = parameter_table(config);
  std::map<std::string, std::size_t> numbers;
  for (const auto& spec : table) {
    auto tensor = checkpoint.parameter(spec.name);
    if (const auto tied = tied_name_of(config, spec.name); !tensor && !tied.empty())
      tensor = checkpoint.parameter(tied);
    if (!tensor) {
      throw FormatError(fmt::format(
          "{}: parameter '{}' is missing{}", plan.path.string(), spec.name,
          spec.name.ends_with(".bias") ? ": models without biases are not supported" : " (the model's sizes need it)"));
    }
    check_fit(tensors[*tensor], spec.shape, plan.path);
    numbers.emplace(spec.name, plan.weights.size());
    plan.weights.push_back(*tensor);
  }
  for (const auto& name : checkpoint.model_names()) {
    if (block_of(name) >= config.num_layers) {
      throw FormatError(fmt::format("{}: '{}' belongs to no block of the model, which has {}", plan.path.string(), name,
                                    config.num_layers));
    }
  }
  for (const auto& [alias, name] : tied_names(config)) {
    const auto copy = checkpoint.parameter(alias);
    const auto original = numbers.at(name);
    // Ours names one place twice.
    if (!copy || *copy == plan.weights[original] || checkpoint.is_ours()) continue;
    check_fit(tensors[*copy], table[original].shape, plan.path);
    plan.copies.emplace(original, *copy);
  }
  return plan;
}

LoadPlan plan_adapters(const Checkpoint& checkpoint, const std::vector<ParameterSpec>& table) {
  const auto& tensors = checkpoint.source().tensors();
  std::map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < tensors.size(); ++i) numbers.emplace(tensors[i].name, i);
  return plan_each_adapter(table, checkpoint.source(), checkpoint.path(), [&](const std::string& name) {
    const auto found = numbers.find("model." + name);
    return found == numbers.end() ? std::nullopt : std::optional(found->second);
  });
}

LoadPlan plan_adapters(const AdapterPlan& adapter, const std::vector<ParameterSpec>& table) {
  auto plan = plan_each_adapter(table, *adapter.source, adapter.file, [&](const std::string& name) {
    const auto at = name.rfind(".lora_");
    const auto parts = adapter.parts.find(name.substr(0, at));
    if (parts == adapter.parts.end()) return std::optional<std::size_t>();
    return name.ends_with("_A.weight")   ? parts->second.a
           : name.ends_with("_B.weight") ? parts->second.b
                                         : parts->second.magnitude;
  });
  plan.must_be_finite = true;
  return plan;
}

LoadPlan plan_weights(const Source& source, const std::filesystem::path& directory, const ModelConfig& config,
                      const QuantizeConfig& quantize) {
  const auto stored = quantize.enabled() ? find_stored_nf4(source) : std::map<std::string, StoredNf4>();
  check_all_used(source, directory, config, stored);
  LoadPlan plan;
  plan.path = directory;
  std::map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) numbers.emplace(source.tensors()[i].name, i);
  for (const auto& spec : parameter_table(config)) {
    auto tensor = numbers.find(spec.name);
    if (tensor == numbers.end()) tensor = numbers.find(tied_name_of(config, spec.name));
    if (tensor == numbers.end()) {
      throw FormatError(directory.string() + ": parameter '" + spec.name + "' of the model in config.json is missing");
    }
    if (const auto nf4 = stored.find(spec.name); nf4 != stored.end()) {
      check_stored(nf4->second, spec, quantize, directory);
      plan.stored.emplace(plan.weights.size(), nf4->second);
    } else {
      check_fit(source.tensors()[tensor->second], spec.shape, directory);
      if (!stored.empty() && spec.is_matrix_of_block())
        throw FormatError(fmt::format("{}: '{}' is not in 4 bits as other matrices are; all or none can be read",
                                      directory.string(), spec.name));
    }
    plan.weights.push_back(tensor->second);
  }
  const auto table = parameter_table(config);
  for (const auto& [alias, name] : tied_names(config)) {
    const auto copy = numbers.find(alias);
    const auto original =
        std::find_if(table.begin(), table.end(), [&name = name](const auto& spec) { return spec.name == name; });
    if (copy == numbers.end() || copy->second == plan.weights[static_cast<std::size_t>(original - table.begin())])
      continue;
    check_fit(source.tensors()[copy->second], original->shape, directory);
    plan.copies.emplace(static_cast<std::size_t>(original - table.begin()), copy->second);
  }
  return plan;
}

}  // namespace fsdp
