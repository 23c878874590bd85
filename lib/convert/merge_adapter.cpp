#include "lib/convert/merge_adapter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/config/adapter_config.hpp"
#include "lib/convert/cast_float.hpp"
#include "lib/convert/float_reader.hpp"
#include "lib/convert/select_model.hpp"
#include "lib/convert/transform_decorated.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kBufferElements = 1u << 20;

/// Where the parts of one matrix's adapter are in the adapter's file.
struct Adapter {
  std::optional<std::size_t> a, b, magnitude;
};

constexpr std::array<std::pair<std::string_view, std::optional<std::size_t> Adapter::*>, 3> kParts{
    {{".lora_A.weight", &Adapter::a},
     {".lora_B.weight", &Adapter::b},
     {".lora_magnitude_vector", &Adapter::magnitude}}};

class MergedSource final : public DecoratedSource {
 public:
  MergedSource(std::shared_ptr<const Source> base, const std::filesystem::path& directory, std::optional<DType> result)
      : DecoratedSource(std::move(base)),
        config_(read_adapter_config(directory)),
        base_(inner_),
        adapters_(open_source(directory / kAdapterWeights)) {
    const auto file = directory / kAdapterWeights;
    auto found = find_adapters(file.string());
    const auto model = model_part(*inner_);
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      auto adapter = found.extract(model.contains[i] ? tensor.name.substr(model.prefix.size()) : "");
      if (adapter) {
        check(tensor, adapter.mapped(), file.string());
        if (result) tensor.dtype = *result;
        matrix_.emplace(tensors_.size(), adapter.mapped());
      }
      add_tensor(i, std::move(tensor));
    }
    if (!found.empty())
      throw FormatError(fmt::format("{}: has an adapter of {}, which the base does not have{}", file.string(),
                                    found.begin()->first, first_name()));
    add_all_values();
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
    // Lengths of rows need whole rows.
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
    return adapters_.read(part, 0, static_cast<std::uint64_t>(num_elements(adapters_.source().tensors()[part].shape)),
                          nullptr);
  }

  /// By the name of the matrix.
  std::map<std::string, Adapter> find_adapters(const std::string& file) const {
    std::map<std::string, Adapter> found;
    for (std::size_t i = 0; i < adapters_.source().tensors().size(); ++i) {
      std::string_view name = adapters_.source().tensors()[i].name;
      const auto part =
          std::find_if(kParts.begin(), kParts.end(), [&](const auto& known) { return name.ends_with(known.first); });
      if (!name.starts_with(kAdapterPrefix) || part == kParts.end())
        throw FormatError(fmt::format("{}: tensor \"{}\" is no part of an adapter of a matrix", file, name));
      name.remove_prefix(std::string_view(kAdapterPrefix).size());
      name.remove_suffix(part->first.size());
      found[std::string(name) + ".weight"].*(part->second) = i;
    }
    if (found.empty()) throw FormatError(file + ": holds no adapter");
    return found;
  }

  void check(const SourceTensor& base, const Adapter& adapter, const std::string& file) const {
    const auto wrong = [&](const std::string& what) {
      return FormatError(fmt::format("{}: the adapter of {} {}", file, base.name, what));
    };
    if (!adapter.a || !adapter.b) throw wrong("lacks its lora_A or its lora_B");
    if (config_.dora != adapter.magnitude.has_value())
      throw wrong("has a lora_magnitude_vector where adapter_config.json says use_dora false, or the reverse");
    if (base.shape.size() != 2 || !is_float(base.dtype))
      throw wrong(fmt::format("belongs to a {} tensor of {} dims in the base, a floating-point matrix was expected",
                              torch_name(base.dtype), base.shape.size()));
    const auto expect = [&](std::size_t part, const Shape& shape) {
      const auto& tensor = adapters_.source().tensors()[part];
      if (tensor.shape != shape || !is_float(tensor.dtype))
        throw FormatError(fmt::format(
            "{}: tensor \"{}\" is {} of shape [{}]; a floating-point one of [{}] was expected, from the rank in "
            "adapter_config.json and {} of shape [{}] in the base",
            file, tensor.name, torch_name(tensor.dtype), fmt::join(tensor.shape, ", "), fmt::join(shape, ", "),
            base.name, fmt::join(base.shape, ", ")));
    };
    expect(*adapter.a, {config_.rank, base.shape[1]});
    expect(*adapter.b, {base.shape[0], config_.rank});
    if (adapter.magnitude) expect(*adapter.magnitude, {base.shape[0]});
  }

  /// `values`: rows of W from `row` on, which become those of the merged matrix.
  void add(const Adapter& adapter, const std::vector<float>& a, std::uint64_t row, std::uint64_t columns,
           std::vector<float>& values) const {
    const auto rows = values.size() / columns;
    const auto rank = static_cast<std::uint64_t>(config_.rank);
    const auto b = adapters_.read(*adapter.b, row * rank, rows * rank, nullptr);
    const auto magnitudes =
        adapter.magnitude ? adapters_.read(*adapter.magnitude, row, rows, nullptr) : std::vector<float>();
    const auto scale = static_cast<float>(config_.scale());
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

  /// A row to the given length. A row of zeros has no direction: 0 / 0, as in peft.
  static void stretch(float* row, std::uint64_t columns, float magnitude) {
    double squares = 0;
    for (std::uint64_t j = 0; j < columns; ++j) squares += static_cast<double>(row[j]) * row[j];
    const auto factor = magnitude / static_cast<float>(std::sqrt(squares));
    for (std::uint64_t j = 0; j < columns; ++j) row[j] *= factor;
  }

  std::string first_name() const {
    return inner_->tensors().empty() ? "" : fmt::format(" (its first tensor is \"{}\")", inner_->tensors()[0].name);
  }

  LoraConfig config_;
  FloatReader base_, adapters_;
  std::map<std::size_t, Adapter> matrix_;  ///< by number here
};

}  // namespace

std::unique_ptr<Source> merge_adapter(std::shared_ptr<const Source> base, const std::filesystem::path& directory,
                                      std::optional<DType> result) {
  return std::make_unique<MergedSource>(std::move(base), directory, result);
}

}  // namespace fsdp
