#include "lib/files/read/tensor_in_file.hpp"

#include <algorithm>
#include <stdexcept>

#include "lib/base/error.hpp"
#include "lib/files/formats/crc32.hpp"
#include "lib/files/read/strided_read.hpp"

namespace fsdp {
namespace {

constexpr std::size_t piece_bytes = 512u << 10;  // summed while it is in cache

/// Flips the sign bit of every number of `number_bytes`, from the first one on, each `step_bytes` apart.
void flip_signs(std::span<std::byte> bytes, std::size_t first_bytes, std::size_t number_bytes, std::size_t step_bytes) {
  for (std::size_t at = first_bytes; at < bytes.size(); at += step_bytes)
    bytes[at + number_bytes - 1] ^= std::byte{0x80};
}

void negate_integers(std::span<std::byte> bytes, std::size_t number_bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += number_bytes) {
    unsigned carry = 1;
    for (std::size_t i = 0; i < number_bytes; ++i) {
      const unsigned sum = (~std::to_integer<unsigned>(bytes[at + i]) & 0xffu) + carry;
      bytes[at + i] = static_cast<std::byte>(sum & 0xffu);
      carry = sum >> 8;
    }
  }
}

std::optional<std::uint32_t> read_contiguous(const File& file, const TensorInFile& stored, std::uint64_t begin_bytes,
                                             std::span<std::byte> out, std::vector<ReadSum>* sums) {
  const std::uint64_t offset = stored.storage_begin_bytes + begin_bytes;
  if (sums == nullptr || !stored.crc32) {
    file.read_at(offset, out);
    return std::nullopt;
  }
  std::uint32_t crc = 0;
  for (std::size_t done = 0; done < out.size(); done += piece_bytes) {
    const auto piece = out.subspan(done, std::min(piece_bytes, out.size() - done));
    file.read_at(offset + done, piece);
    crc = crc32(crc, piece);
  }
  sums->push_back({stored.storage, begin_bytes, begin_bytes + out.size(), crc});
  return crc;
}

}  // namespace

TensorView contiguous_view(DType dtype, const Shape& sizes) {
  TensorView view;
  view.dtype = dtype;
  view.sizes = view.strides = sizes;
  view.storage_bytes = view.length_bytes();
  if (view.storage_bytes == 0) return view;  // the other sizes may be anything
  std::int64_t stride = 1;
  for (std::size_t dim = sizes.size(); dim-- > 0; stride *= sizes[dim]) view.strides[dim] = stride;
  return view;
}

void resolve_lazy_bits(const TensorView& view, std::span<std::byte> elements) {
  const std::size_t element_bytes = dtype_size_bytes(view.dtype);
  const std::size_t number_bytes = is_complex(view.dtype) ? element_bytes / 2 : element_bytes;
  if (view.conjugated && is_complex(view.dtype)) flip_signs(elements, number_bytes, number_bytes, element_bytes);
  if (!view.negated) return;
  if (is_float(view.dtype) || is_complex(view.dtype)) {
    flip_signs(elements, 0, number_bytes, number_bytes);
  } else {
    negate_integers(elements, number_bytes);
  }
}

std::optional<std::uint32_t> read_stored(const File& file, const TensorInFile& stored, std::uint64_t first,
                                         std::uint64_t count, std::span<std::byte> out, std::vector<ReadSum>* sums) {
  const TensorView& view = stored.view;
  const std::size_t element_bytes = dtype_size_bytes(view.dtype);
  if (out.size() != count * element_bytes) throw std::logic_error("read_stored: wrong output size");
  if (out.empty()) return std::nullopt;
  std::optional<std::uint32_t> crc;
  if (view.is_contiguous()) {
    crc = read_contiguous(file, stored, (view.storage_offset + first) * element_bytes, out, sums);
  } else {
    read_strided(file, stored, first, count, out, sums);
  }
  if (!view.conjugated && !view.negated) return crc;
  resolve_lazy_bits(view, out);
  return std::nullopt;
}

}  // namespace fsdp
