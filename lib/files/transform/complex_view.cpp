// Complex tensors as pairs of real numbers.
#include <cstring>
#include <utility>

#include "lib/files/transform/transform.hpp"
#include "lib/files/transform/transform_decorated.hpp"

namespace fsdp {
namespace {

class ComplexViewSource final : public DecoratedSource {
 public:
  explicit ComplexViewSource(std::shared_ptr<const Source> source) : DecoratedSource(std::move(source)) {
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      if (is_complex(tensor.dtype)) {
        constexpr const char* kSuffix = "@view_as_real";
        tensor.dtype = tensor.dtype == DType::c64 ? DType::f32 : DType::f64;
        tensor.shape.push_back(2);
        tensor.name += kSuffix;
        auto* last = tensor.path.empty() ? nullptr : std::get_if<std::string>(&tensor.path.back());
        if (last != nullptr) {
          *last += kSuffix;
        } else {
          tensor.path = {tensor.name};
        }
      }
      add_tensor(i, std::move(tensor));
    }
    add_all_values();
    check_unique_names(*this);
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    const auto inner = inner_tensor_.at(tensor);
    if (!is_complex(inner_->tensors()[inner].dtype)) return inner_->read(inner, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    if (count == 0) return std::nullopt;
    if (first % 2 == 0 && count % 2 == 0) return inner_->read(inner, first / 2, count / 2, out, sums);
    // A half at either end is read on its own; the whole numbers between go straight to `out`.
    const auto half = dtype_size_bytes(tensors_[tensor].dtype);
    const auto copy_half = [&](std::uint64_t number, std::span<std::byte> to) {
      std::vector<std::byte> pair(2 * half);
      inner_->read(inner, number / 2, 1, pair, nullptr);  // both halves would sum it twice
      std::memcpy(to.data(), pair.data() + number % 2 * half, half);
    };
    auto begin = first, end = first + count;
    if (begin % 2 != 0) copy_half(begin++, out.first(half));
    if (end % 2 != 0 && end > begin) copy_half(--end, out.last(half));
    if (end > begin) {
      inner_->read(inner, begin / 2, (end - begin) / 2, out.subspan((begin - first) * half, (end - begin) * half),
                   sums);
    }
    return std::nullopt;
  }
};

}  // namespace

std::unique_ptr<Source> view_complex_as_real(std::shared_ptr<const Source> source) {
  return std::make_unique<ComplexViewSource>(std::move(source));
}

}  // namespace fsdp
