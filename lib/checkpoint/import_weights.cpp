#include "lib/checkpoint/import_weights.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "lib/base/error.hpp"
#include "lib/checkpoint/model_source.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/tensor/scalar_type.hpp"

namespace fsdp {
namespace {

/// Buffers that some writers store beside the parameters: they follow from config.json.
bool is_known_buffer(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

/// A model's tensors in files, however they are stored.
class StoredWeights {
 public:
  explicit StoredWeights(const std::filesystem::path& directory) {
    if (!is_gpt2_directory(directory)) {
      plain_.emplace(directory);
      for (const auto& [name, entry] : plain_->tensors()) tensors_[name] = {entry.dtype, entry.shape, 0};
      return;
    }
    source_ = open_model_source(directory);
    for (std::size_t i = 0; i < source_->tensors().size(); ++i) {
      const auto& tensor = source_->tensors()[i];
      tensors_[tensor.name] = {tensor.dtype, tensor.shape, i};
    }
  }

  struct Tensor {
    DType dtype = DType::f32;
    Shape shape;
    std::size_t number = 0;  ///< in source_
  };
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  void read_rows(const std::string& name, std::int64_t first, std::int64_t count, const at::Tensor& out) const {
    const std::span bytes(static_cast<std::byte*>(out.data_ptr()), static_cast<std::size_t>(out.nbytes()));
    if (plain_) return plain_->read_rows(name, first, count, bytes);
    const auto row = static_cast<std::uint64_t>(out.numel() / count);
    source_->read(tensors_.at(name).number, static_cast<std::uint64_t>(first) * row,
                  static_cast<std::uint64_t>(out.numel()), bytes, nullptr);
  }

 private:
  std::optional<SafetensorsModel> plain_;
  std::unique_ptr<Source> source_;  // of a GPT-2, whose matrices are turned on the way
  std::map<std::string, Tensor> tensors_;
};

/// A tensor without a place means that config.json describes another model.
void check_all_used(const StoredWeights& model, const ModelConfig& config, const std::filesystem::path& directory) {
  std::set<std::string> known;
  for (const auto& spec : parameter_table(config)) known.insert(spec.name);
  for (const auto& [name, original] : tied_names(config)) known.insert(name);
  for (const auto& [name, entry] : model.tensors()) {
    if (known.contains(name) || is_known_buffer(name)) continue;
    throw FormatError(directory.string() + ": tensor '" + name +
                      "' has no place in the model that config.json describes");
  }
}

}  // namespace

void load_safetensors_parameters(ModelRuntime& runtime, const std::filesystem::path& directory) {
  const at::NoGradGuard no_grad;
  const StoredWeights model(directory);
  check_all_used(model, runtime.decoder().config, directory);
  auto& engine = runtime.engine();
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    const auto& layout = engine.layout(i);
    const auto entry = model.tensors().find(layout.name);
    if (entry == model.tensors().end()) {
      throw FormatError(directory.string() + ": parameter '" + layout.name +
                        "' of the model in config.json is missing");
    }
    if (entry->second.shape != layout.shape) {
      throw FormatError(fmt::format("{}: parameter '{}' has shape [{}], config.json says [{}]", directory.string(),
                                    layout.name, fmt::join(entry->second.shape, ", "), fmt::join(layout.shape, ", ")));
    }
    if (!is_float(entry->second.dtype) || dtype_size_bytes(entry->second.dtype) == 1) {
      throw FormatError(fmt::format("{}: parameter '{}' is {}, expected float64, float32, bfloat16 or float16",
                                    directory.string(), layout.name, torch_name(entry->second.dtype)));
    }
    const auto range = engine.range(i);
    if (range.num_rows == 0) continue;
    auto values = at::empty(layout.shape_with_rows(range.num_rows), to_scalar_type(entry->second.dtype));
    model.read_rows(layout.name, range.first_row, range.num_rows, values);
    engine.master_weight(i).narrow(0, 0, range.num_rows).copy_(values);
  }
  engine.sync_parameters();
}

}  // namespace fsdp
