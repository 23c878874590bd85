// The element type of a model's tensors.
#include <algorithm>
#include <utility>

#include "lib/base/error.hpp"
#include "lib/files/transform/cast_float.hpp"
#include "lib/files/transform/select_model.hpp"
#include "lib/files/transform/transform.hpp"
#include "lib/files/transform/transform_decorated.hpp"

namespace fsdp {
namespace {

constexpr std::uint64_t kBufferElements = 1u << 16;  // fits the second-level cache with its result

class CastSource final : public DecoratedSource {
 public:
  CastSource(std::shared_ptr<const Source> source, DType dtype) : DecoratedSource(std::move(source)) {
    if (!is_float(dtype)) {
      throw UsageError(
          "--dtype " + std::string(torch_name(dtype)) +
          " is no floating-point type; take float32, bfloat16, float16, float64, float8_e4m3fn or float8_e5m2");
    }
    const auto model = model_part(*inner_);
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      const bool changes = model.contains[i] && is_float(tensor.dtype) && tensor.dtype != dtype;
      if (changes && converters_.find(tensor.dtype) == converters_.end()) {
        converters_.emplace(tensor.dtype, FloatConverter(tensor.dtype, dtype));
      }
      if (changes) tensor.dtype = dtype;
      add_tensor(i, std::move(tensor));
    }
    add_all_values();
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    const auto inner = inner_tensor_.at(tensor);
    const auto from = inner_->tensors()[inner].dtype, to = tensors_[tensor].dtype;
    if (from == to) return inner_->read(inner, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    const auto& converter = converters_.at(from);
    const auto in_size = dtype_size_bytes(from), out_size = dtype_size_bytes(to);
    const auto step = inner_->prefers_whole(inner) ? std::max<std::uint64_t>(count, 1) : kBufferElements;
    std::vector<std::byte> buffer(std::min(step, count) * in_size);
    for (std::uint64_t done = 0; done < count; done += step) {
      const auto part = std::min(step, count - done);
      const auto in = std::span(buffer).first(part * in_size);
      inner_->read(inner, first + done, part, in, sums);
      converter.convert(in, out.subspan(done * out_size, part * out_size));
    }
    return std::nullopt;
  }

 private:
  std::map<DType, FloatConverter> converters_;  // by the type converted from
};

}  // namespace

std::unique_ptr<Source> cast(std::shared_ptr<const Source> source, DType dtype) {
  return std::make_unique<CastSource>(std::move(source), dtype);
}

}  // namespace fsdp
