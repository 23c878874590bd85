#include "lib/run/initialize.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <memory>
#include <numbers>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "lib/base/error.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/run/model_source.hpp"
#include "lib/tensor/scalar_type.hpp"

namespace fsdp {
namespace {

std::uint64_t mix64(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

/// Elements [first, first + n) of a parameter's normal stream. Elements 2k and 2k + 1 share a pair of uniforms.
void fill_normal(float* out, std::int64_t first, std::int64_t n, std::uint64_t key, double std) {
  at::parallel_for(0, n, 16384, [&](std::int64_t b, std::int64_t e) {
    for (std::int64_t i = b; i < e; ++i) {
      const auto element = static_cast<std::uint64_t>(first + i);
      const auto pair = element & ~std::uint64_t{1};
      const double u1 = (static_cast<double>(mix64(key + pair) >> 11) + 1.0) * 0x1p-53;
      const double u2 = static_cast<double>(mix64(key + pair + 1) >> 11) * 0x1p-53;
      const double radius = std::sqrt(-2.0 * std::log(u1));
      const double angle = 2.0 * std::numbers::pi * u2;
      out[i] = static_cast<float>(std * radius * ((element & 1) == 0 ? std::cos(angle) : std::sin(angle)));
    }
  });
}

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

void initialize_parameters(ModelRuntime& runtime, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  auto& engine = runtime.engine();
  for (std::size_t i = 0; i < engine.num_parameters(); ++i) {
    const auto& spec = runtime.decoder().parameters[i];
    const auto range = engine.range(i);
    if (range.num_rows == 0) continue;
    auto rows = engine.master(i).narrow(0, 0, range.num_rows);
    if (spec.init != Init::normal) {
      rows.fill_(spec.init == Init::ones ? 1.0 : 0.0);
      continue;
    }
    auto values = at::empty(rows.sizes(), at::kFloat);
    const auto row_elements = engine.layout(i).row_elements();
    fill_normal(values.data_ptr<float>(), range.first_row * row_elements, values.numel(),
                mix64(seed) ^ fnv1a(spec.name), spec.std);
    rows.copy_(values);
  }
  engine.publish_parameters();
}

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
    engine.master(i).narrow(0, 0, range.num_rows).copy_(values);
  }
  engine.publish_parameters();
}

}  // namespace fsdp
