#include "lib/training/state/adapter_files.hpp"

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/text/json_text.hpp"
#include "lib/base/types/error.hpp"
#include "lib/compute/tensor/without_autograd.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

/// All rows of a parameter, on the first rank of each shard group.
std::string gather_rows(ModelRuntime& runtime, std::size_t param) {
  auto& engine = runtime.engine();
  const auto& layout = engine.layout(param);
  const auto rows = engine.range(param).num_rows;
  auto own_rows = at::empty(layout.shape_with_rows(rows), at::kFloat);
  own_rows.copy_(engine.shard(param, Access::read).values().narrow(0, 0, rows));
  std::string whole;
  const std::string_view bytes(static_cast<const char*>(own_rows.const_data_ptr()), own_rows.nbytes());
  for (const auto& part : runtime.mesh().shard.ranks->gather(bytes, 0)) whole += part;
  return whole;
}

/// A tensor of the file.
struct AdapterTensor {
  std::string name;
  Shape shape;
  std::size_t values;  ///< which of those that were gathered
};

/// The names that peft gives a parameter: a bias under the wrapper of its module's adapter, and one weight that head
/// and embedding share under both.
std::vector<std::string> names_in_peft(const Decoder& decoder, const ParameterSpec& spec) {
  const auto rows = trained_rows(decoder.config, decoder.options.lora);
  const auto owner = spec.name.substr(0, spec.name.rfind('.'));
  const auto named = [&](std::string name) {
    const auto dot = name.rfind('.');
    const auto module = name.substr(0, dot);
    if (spec.kept && (rows.contains(module) || rows.contains(owner))) {
      name.insert(dot, ".token_adapter.base_layer");
    } else if (decoder.adapters.contains(module) && (spec.kept || name.ends_with(".bias"))) {
      name.insert(dot, ".base_layer");
    }
    return kAdapterPrefix + name;
  };
  if (spec.adapter) {
    std::vector<std::string> names{kAdapterPrefix + spec.name};
    for (const auto& [head, embedding] : tied_names(decoder.config)) {
      if (decoder.options.lora.vocabulary > 0 && spec.name == embedding.substr(0, embedding.rfind('.')) + kTokenRows)
        names.push_back(kAdapterPrefix + head.substr(0, head.rfind('.')) + kTokenRows);
    }
    return names;
  }
  std::vector<std::string> names{named(spec.name)};
  for (const auto& [head, embedding] : tied_names(decoder.config)) {
    if (embedding == spec.name) names.push_back(named(head));
  }
  return names;
}

void write(const std::filesystem::path& directory, const std::vector<AdapterTensor>& tensors,
           const std::vector<std::string>& values, const nlohmann::json& config) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw IoError(directory.string() + ": cannot be made: " + error.message());
  std::vector<ShardRecord> records;
  for (const auto& [name, shape, place] : tensors) {
    const Shape zeros(shape.size(), 0);
    records.push_back({name,
                       DType::f32,
                       shape,
                       zeros,
                       shape,
                       {reinterpret_cast<const std::byte*>(values[place].data()), values[place].size()}});
  }
  write_safetensors(directory / kAdapterWeights, records, {{"format", "pt"}});
  replace_file(directory / kAdapterConfig, json_text(config, 2) + "\n");
}

}  // namespace

void save_adapter(ModelRuntime& runtime, const std::filesystem::path& directory, const std::string& base) {
  const WithoutAutograd guard;
  const auto& decoder = runtime.decoder();
  std::vector<AdapterTensor> tensors;
  std::vector<std::string> values;
  for (std::size_t i = 0; i < decoder.parameters.size(); ++i) {
    const auto& spec = decoder.parameters[i];
    if (!spec.with_adapter()) continue;
    for (const auto& name : names_in_peft(decoder, spec)) tensors.push_back({name, spec.shape, values.size()});
    values.push_back(gather_rows(runtime, i));
  }
  run_agreed(runtime.world(), [&] {
    if (runtime.world().rank() == 0)
      write(directory, tensors, values, adapter_config_to_json(decoder.config, decoder.options.lora, base));
  });
}

}  // namespace fsdp
