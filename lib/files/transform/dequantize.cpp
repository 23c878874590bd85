#include "lib/files/transform/dequantize.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lib/compute/kernels/eight_bit_code.hpp"
#include "lib/compute/kernels/kernels.hpp"
#include "lib/files/read/stored_nf4.hpp"
#include "lib/files/transform/cast_float.hpp"
#include "lib/files/transform/transform_decorated.hpp"

namespace fsdp {
namespace {

using kernels::kNf4Block, kernels::kNf4Block_bytes;

constexpr std::int64_t kBlocksAtOnce = 1 << 14;

class DequantizedSource final : public DecoratedSource {
 public:
  DequantizedSource(std::shared_ptr<const Source> source, const std::map<std::string, StoredNf4>& stored)
      : DecoratedSource(std::move(source)) {
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      auto tensor = inner_->tensors()[i];
      if (is_part_of(stored, tensor.name)) continue;
      if (const auto found = stored.find(tensor.name); found != stored.end()) {
        tensor.shape = found->second.shape;
        tensor.dtype = found->second.dtype;
        matrices_.emplace(tensors_.size(), found->second);
      }
      add_tensor(i, std::move(tensor));
    }
    add_all_values();
  }

  std::optional<std::uint32_t> read(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                    std::span<std::byte> out, std::vector<ReadSum>* sums) const override {
    const auto found = matrices_.find(tensor);
    if (found == matrices_.end() || count == 0) return DecoratedSource::read(tensor, first, count, out, sums);
    check_read(tensors_[tensor], first, count, out.size());
    const auto dtype = tensors_[tensor].dtype;
    const auto item = dtype_size_bytes(dtype);
    const FloatConverter converter(DType::f32, dtype);
    const auto from = static_cast<std::int64_t>(first), to = static_cast<std::int64_t>(first + count);
    for (auto block = from / kNf4Block; block * kNf4Block < to; block += kBlocksAtOnce) {
      const auto end = std::min(block + kBlocksAtOnce, (to + kNf4Block - 1) / kNf4Block);
      const auto values = blocks(found->second, block, end, sums);
      const auto begin = std::max(from, block * kNf4Block), last = std::min(to, end * kNf4Block);
      const std::span wanted(values.data() + (begin - block * kNf4Block), static_cast<std::size_t>(last - begin));
      converter.convert(std::as_bytes(wanted),
                        out.subspan(static_cast<std::size_t>(begin - from) * item, wanted.size() * item));
    }
    return std::nullopt;
  }

 private:
  template <typename Value>
  std::vector<Value> part(std::size_t tensor, std::int64_t first, std::int64_t last, std::vector<ReadSum>* sums) const {
    std::vector<Value> values(static_cast<std::size_t>(last - first));
    inner_->read(tensor, static_cast<std::uint64_t>(first), values.size(), std::as_writable_bytes(std::span(values)),
                 sums);
    return values;
  }

  std::vector<float> scales(const StoredNf4& matrix, std::int64_t begin, std::int64_t end,
                            std::vector<ReadSum>* sums) const {
    if (!matrix.nested_absmax) return part<float>(matrix.absmax, begin, end, sums);
    const auto codes = part<std::uint8_t>(matrix.absmax, begin, end, sums);
    const auto nested = part<float>(*matrix.nested_absmax, begin / kernels::kEightBitBlock,
                                    (end + kernels::kEightBitBlock - 1) / kernels::kEightBitBlock, sums);
    std::vector<float> values(codes.size());
    kernels::nf4_nested_scales(
        {values.data(), codes.data(), nested.data(), matrix.nested_offset, begin % kernels::kEightBitBlock}, 0,
        end - begin);
    return values;
  }

  /// Elements of blocks [begin, end).
  std::vector<float> blocks(const StoredNf4& matrix, std::int64_t begin, std::int64_t end,
                            std::vector<ReadSum>* sums) const {
    const auto& codes = inner_->tensors()[matrix.codes];
    const auto item = static_cast<std::int64_t>(dtype_size_bytes(codes.dtype));
    const auto stored = static_cast<std::int64_t>(codes.size_bytes());
    const auto first = begin * kNf4Block_bytes, last = std::min(end * kNf4Block_bytes, stored);
    std::vector<std::byte> packed(static_cast<std::size_t>((end - begin) * kNf4Block_bytes));
    inner_->read(matrix.codes, static_cast<std::uint64_t>(first / item),
                 static_cast<std::uint64_t>((last - first) / item),
                 std::span(packed).first(static_cast<std::size_t>(last - first)), sums);
    const auto absmax = scales(matrix, begin, end, sums);
    std::vector<float> values(static_cast<std::size_t>((end - begin) * kNf4Block));
    const kernels::Nf4Args args{values.data(), reinterpret_cast<const std::uint8_t*>(packed.data()), absmax.data(),
                                kernels::nf4_pairs().data(), static_cast<std::int64_t>(values.size())};
    kernels::table().dequantize_nf4(kernels::Type::f32, args, 0, end - begin);
    return values;
  }

  std::map<std::size_t, StoredNf4> matrices_;  ///< by number here
};

}  // namespace

std::shared_ptr<const Source> dequantize(std::shared_ptr<const Source> source) {
  const auto stored = find_stored_nf4(*source);
  if (stored.empty()) return source;
  return std::make_shared<DequantizedSource>(std::move(source), stored);
}

}  // namespace fsdp
