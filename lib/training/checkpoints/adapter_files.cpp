#include "lib/training/checkpoints/adapter_files.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"
#include "lib/files/formats/safetensors.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp {
namespace {

/// All rows of a parameter, on the first rank of each shard group.
std::string gather_rows(ModelRuntime& runtime, std::size_t param) {
  auto& engine = runtime.engine();
  const auto& layout = engine.layout(param);
  const auto rows = engine.range(param).num_rows;
  auto mine = at::empty(layout.shape_with_rows(rows), at::kFloat);
  engine.with_shard(param, Access::read, [&] { mine.copy_(engine.master_weight(param).narrow(0, 0, rows)); });
  std::string whole;
  const std::string_view bytes(static_cast<const char*>(mine.const_data_ptr()), mine.nbytes());
  for (const auto& part : runtime.mesh().shard->gather(bytes, 0)) whole += part;
  return whole;
}

void write(const std::filesystem::path& directory, const std::vector<ParameterSpec>& specs,
           const std::vector<std::string>& values, const nlohmann::json& config) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw IoError(directory.string() + ": cannot be made: " + error.message());
  std::vector<ShardRecord> records;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Shape zeros(specs[i].shape.size(), 0);
    records.push_back({kAdapterPrefix + specs[i].name,
                       DType::f32,
                       specs[i].shape,
                       zeros,
                       specs[i].shape,
                       {reinterpret_cast<const std::byte*>(values[i].data()), values[i].size()}});
  }
  write_safetensors(directory / kAdapterWeights, records, {{"format", "pt"}});
  replace_file(directory / kAdapterConfig, json_text(config, 2) + "\n");
}

}  // namespace

void save_adapter(ModelRuntime& runtime, const std::filesystem::path& directory, const std::string& base) {
  const at::NoGradGuard no_grad;
  const auto& decoder = runtime.decoder();
  std::vector<ParameterSpec> specs;
  std::vector<std::string> values;
  for (std::size_t i = 0; i < decoder.parameters.size(); ++i) {
    if (!decoder.parameters[i].adapter) continue;
    specs.push_back(decoder.parameters[i]);
    values.push_back(gather_rows(runtime, i));
  }
  run_agreed(runtime.world(), [&] {
    if (runtime.world().rank() == 0)
      write(directory, specs, values, adapter_config_to_json(decoder.config, decoder.options.lora, base));
  });
}

}  // namespace fsdp
