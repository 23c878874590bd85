#include "lib/files/transform/merge_adapter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/files/transform/adapter_plan.hpp"
#include "lib/files/transform/cast.hpp"
#include "lib/files/transform/select.hpp"
#include "lib/files/transform/transform.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kBufferElements = 1u << 20;

/// The module that a weight of the model belongs to; "" for any other tensor.
std::string module_of(const Source& base, const ModelPart& model, std::size_t tensor) {
  constexpr std::string_view kWeight = ".weight";
  const auto& name = base.tensors()[tensor].name;
  if (!model.contains[tensor] || !name.ends_with(kWeight)) return "";
  return name.substr(model.prefix.size(), name.size() - model.prefix.size() - kWeight.size());
}

/// The type of a tensor of the base that is no floating-point type; empty for one that is.
std::string other_type_of(const SourceTensor& tensor) {
  if (tensor.other) return tensor.other->name;
  return is_float(tensor.dtype) ? "" : std::string(torch_name(tensor.dtype));
}

/// The modules of the base. Any floating-point matrix can have an adapter; matrices of blocks have a number in their
/// names.
std::vector<BaseModule> modules_of(const Source& base, const ModelPart& model) {
  std::vector<BaseModule> modules;
  for (std::size_t i = 0; i < base.tensors().size(); ++i) {
    auto name = module_of(base, model, i);
    if (name.empty()) continue;
    const auto& tensor = base.tensors()[i];
    const bool is_in_block = std::any_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    modules.push_back({std::move(name), tensor.shape.size() == 2, is_in_block, other_type_of(tensor)});
  }
  return modules;
}

class MergedSource final : public DecoratedSource {
 public:
  MergedSource(std::shared_ptr<const Source> base, const std::filesystem::path& directory, std::optional<DType> result)
      : DecoratedSource(std::move(base)),
        plan_(plan_adapter(directory, modules_of(*inner_, model_part(*inner_)))),
        base_(inner_),
        adapters_(plan_.source) {
    const auto model = model_part(*inner_);
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      const auto found = plan_.parts.find(module_of(*inner_, model, i));
      if (found != plan_.parts.end()) {
        check(tensor, found->second);
        if (result)
          tensor.dtype = *result;
        else
          refuse_float8(tensor);
        matrix_.emplace(tensors_.size(), found->second);
      }
      add_tensor(i, std::move(tensor));
    }
    add_all_values();
    info_.remarks.insert(info_.remarks.end(), plan_.remarks.begin(), plan_.remarks.end());
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    const auto found = matrix_.find(tensor);
    if (found == matrix_.end() || count == 0) return DecoratedSource::read(tensor, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    const auto& shape = tensors_[tensor].shape;
    const auto columns = static_cast<std::uint64_t>(shape[1]);
    const auto a = whole(*found->second.a);
    const auto item = dtype_size_bytes(tensors_[tensor].dtype);
    // The length of a row needs the whole row.
    const auto begin_row = first / columns, end_row = (first + count - 1) / columns + 1;
    const auto step = inner_->prefers_whole(inner_tensor_[tensor])
                          ? end_row - begin_row
                          : std::max<std::uint64_t>(1, kBufferElements / columns);
    for (auto row = begin_row; row < end_row; row += step) {
      const auto rows = std::min(step, end_row - row);
      auto values = base_.read(inner_tensor_[tensor], row * columns, rows * columns, sums);
      add(found->second, a, row, columns, values);
      const auto from = std::max(first, row * columns), to = std::min(first + count, (row + rows) * columns);
      const std::span<const float> wanted(values.data() + (from - row * columns), to - from);
      FloatConverter(DType::f32, tensors_[tensor].dtype)
          .convert(std::as_bytes(wanted), out.subspan((from - first) * item, (to - from) * item));
    }
    return std::nullopt;
  }

 private:
  std::vector<float> whole(std::size_t part) const {
    return part_values(part, 0, static_cast<std::uint64_t>(num_elements(adapters_.source().tensors()[part].shape)));
  }

  /// Reads elements [first, first + count) of a part of the adapter. \throws FormatError when an element is not finite
  std::vector<float> part_values(std::size_t part, std::uint64_t first, std::uint64_t count) const {
    auto values = adapters_.read(part, first, count, nullptr);
    if (std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) return values;
    throw FormatError(fmt::format("{}: '{}' has elements that are not finite (fsdp-ckpt-convert --check)",
                                  plan_.file.string(), adapters_.source().tensors()[part].name));
  }

  /// Refuses types of one byte: an adapter mostly adds less than half a step of such a type.
  void refuse_float8(const SourceTensor& tensor) const {
    if (dtype_size_bytes(tensor.dtype) > 1) return;
    throw FormatError(
        fmt::format("{}: tensor \"{}\" is {}, which would round away most of what the adapter adds: say what the "
                    "merged model is to be kept in, as --dtype bfloat16",
                    inner_->info().directory.string(), tensor.name, torch_name(tensor.dtype)));
  }

  void check(const SourceTensor& base, const AdapterParts& adapter) const {
    const auto expect = [&](std::size_t part, const Shape& shape) {
      const auto& tensor = adapters_.source().tensors()[part];
      if (tensor.shape != shape || !is_float(tensor.dtype))
        throw FormatError(fmt::format(
            "{}: tensor \"{}\" is {} of shape [{}]; a floating-point one of [{}] was expected, from the rank in "
            "adapter_config.json and {} of shape [{}] in the base",
            plan_.file.string(), tensor.name, torch_name(tensor.dtype), fmt::join(tensor.shape, ", "),
            fmt::join(shape, ", "), base.name, fmt::join(base.shape, ", ")));
    };
    expect(*adapter.a, {plan_.lora.rank, base.shape[1]});
    expect(*adapter.b, {base.shape[0], plan_.lora.rank});
    if (adapter.magnitude) expect(*adapter.magnitude, {base.shape[0]});
  }

  /// Merges the adapter into `values`, which hold the rows of W from `row` on.
  void add(const AdapterParts& adapter, const std::vector<float>& a, std::uint64_t row, std::uint64_t columns,
           std::vector<float>& values) const {
    const auto rows = values.size() / columns;
    const auto rank = static_cast<std::uint64_t>(plan_.lora.rank);
    const auto b = part_values(*adapter.b, row * rank, rows * rank);
    const auto magnitudes = adapter.magnitude ? part_values(*adapter.magnitude, row, rows) : std::vector<float>();
    const auto scale = static_cast<float>(plan_.lora.scale());
    std::vector<float> delta(columns);
    for (std::uint64_t i = 0; i < rows; ++i) {
      float* out = values.data() + i * columns;
      std::fill(delta.begin(), delta.end(), 0.0f);
      for (std::uint64_t r = 0; r < rank; ++r) {
        const float factor = b[i * rank + r];
        const float* source = a.data() + r * columns;
        for (std::uint64_t j = 0; j < columns; ++j) delta[j] += factor * source[j];
      }
      for (std::uint64_t j = 0; j < columns; ++j) out[j] += scale * delta[j];
      if (!magnitudes.empty()) stretch(out, columns, magnitudes[i]);
    }
  }

  /// Scales a row to the given length. A row of zeros has no direction and gives 0 / 0, as in peft.
  static void stretch(float* row, std::uint64_t columns, float magnitude) {
    double squares = 0;
    for (std::uint64_t j = 0; j < columns; ++j) squares += static_cast<double>(row[j]) * row[j];
    const auto factor = magnitude / static_cast<float>(std::sqrt(squares));
    for (std::uint64_t j = 0; j < columns; ++j) row[j] *= factor;
  }

  AdapterPlan plan_;
  FloatReader base_, adapters_;
  std::map<std::size_t, AdapterParts> matrix_;  ///< by tensor number
};

}  // namespace

std::unique_ptr<Source> merge_adapter(std::shared_ptr<const Source> base, const std::filesystem::path& directory,
                                      std::optional<DType> result) {
  return std::make_unique<MergedSource>(std::move(base), directory, result);
}

}  // namespace fsdp
