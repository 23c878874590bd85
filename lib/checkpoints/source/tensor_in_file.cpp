#include "lib/checkpoints/source/tensor_in_file.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "lib/base/types/error.hpp"
#include "lib/formats/crc32.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kSumPieceBytes = 512u << 10;  // still in cache when it is summed

/// Flips the sign bits of numbers of `number_bytes` bytes, from `first_bytes` on, each `step_bytes` after the one
/// before.
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
  for (std::size_t done = 0; done < out.size(); done += kSumPieceBytes) {
    const auto piece = out.subspan(done, std::min(kSumPieceBytes, out.size() - done));
    file.read_at(offset + done, piece);
    crc = crc32(crc, piece);
  }
  sums->push_back({.storage = stored.storage, .begin = begin_bytes, .end = begin_bytes + out.size(), .crc32 = crc});
  return crc;
}

constexpr std::uint64_t kWindowBytes = 1u << 20;
constexpr std::uint64_t kWorthSummingBytes = 64u << 10;  // smaller pieces would take more room for sums than for data

/// One dim of a box: neighbours are `from` elements apart in the storage and `to` apart in the output.
struct Dim {
  std::uint64_t size, from, to;
};

/// A piece of the storage in memory. Positions count elements.
class Window {
 public:
  Window(const File& file, const TensorInFile& stored, std::vector<ReadSum>* sums)
      : file_(file),
        stored_(stored),
        sums_(stored.crc32 ? sums : nullptr),
        element_bytes_(dtype_size_bytes(stored.view.dtype)) {}

  /// Positions from `begin` on may be asked for up to `end`; about `read_ahead` elements at once.
  void start(std::uint64_t end, std::uint64_t read_ahead) {
    needed_end_ = end;
    read_ahead_ = std::clamp<std::uint64_t>(read_ahead, 1, kWindowBytes / element_bytes_);
  }
  bool holds(std::uint64_t position) const { return position >= begin_ && position < end_; }
  std::uint64_t end() const { return end_; }
  const std::byte* at(std::uint64_t position) {
    if (!holds(position)) fill(position);
    return buffer_.data() + (position - begin_) * element_bytes_;
  }

 private:
  void fill(std::uint64_t position) {
    const std::uint64_t length = std::min(read_ahead_, needed_end_ - position);
    buffer_.resize(std::max<std::size_t>(buffer_.size(), length * element_bytes_));
    const auto bytes = std::span(buffer_).first(length * element_bytes_);
    file_.read_at(stored_.storage_begin_bytes + position * element_bytes_, bytes);
    begin_ = position;
    end_ = position + length;
    if (sums_ == nullptr || (bytes.size() < kWorthSummingBytes && bytes.size() < stored_.view.storage_bytes)) return;
    const std::uint64_t first = position * element_bytes_;
    sums_->push_back(
        {.storage = stored_.storage, .begin = first, .end = first + bytes.size(), .crc32 = crc32(0, bytes)});
  }

  const File& file_;
  const TensorInFile& stored_;
  std::vector<ReadSum>* sums_;
  std::size_t element_bytes_;
  std::vector<std::byte> buffer_;
  std::uint64_t begin_ = 0, end_ = 0, needed_end_ = 0, read_ahead_ = 1;
};

template <std::size_t ElementBytes>
void copy_elements(const std::byte* from, std::uint64_t from_step, std::byte* to, std::uint64_t to_step,
                   std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_step * ElementBytes, from + i * from_step * ElementBytes, ElementBytes);
  }
}

class StridedReader {
 public:
  StridedReader(const File& file, const TensorInFile& stored, std::vector<ReadSum>* sums)
      : view_(stored.view), window_(file, stored, sums), element_bytes_(dtype_size_bytes(view_.dtype)) {}

  /// Copies elements [first, first + count) of the dims from `dim` on, which start at `base` in the storage.
  void range(std::size_t dim, std::uint64_t base, std::uint64_t first, std::uint64_t count, std::byte* out) {
    if (count == 0) return;
    if (dim == view_.sizes.size()) return box(dim, 1, base, out);
    std::uint64_t inner = 1;
    for (std::size_t d = dim + 1; d < view_.sizes.size(); ++d) inner *= view_.sizes[d];
    const std::uint64_t stride = view_.strides[dim];
    std::uint64_t row = first / inner;
    if (const std::uint64_t cut = first % inner; cut != 0) {
      const std::uint64_t head = std::min(count, inner - cut);
      range(dim + 1, base + row * stride, cut, head, out);
      count -= head;
      out += head * element_bytes_;
      ++row;
    }
    const std::uint64_t rows = count / inner;
    if (rows > 0) box(dim, rows, base + row * stride, out);
    range(dim + 1, base + (row + rows) * stride, 0, count % inner, out + rows * inner * element_bytes_);
  }

 private:
  /// Copies `rows` indexes of dim `dim` with all of the dims after it.
  void box(std::size_t dim, std::uint64_t rows, std::uint64_t base, std::byte* out) {
    std::vector<Dim> dims;
    std::uint64_t to = 1, last = base;
    for (std::size_t d = view_.sizes.size(); d-- > dim;) {
      const auto size = d == dim ? rows : static_cast<std::uint64_t>(view_.sizes[d]);
      const std::uint64_t from = view_.strides[d];
      if (size != 1) dims.push_back({size, from, to});
      to *= size;
      last += (size - 1) * from;
    }
    // Sorts the dims by file order. A repeated dim (stride 0) comes first, so that its content is copied in runs.
    std::stable_sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) {
      return (a.from == 0) != (b.from == 0) ? a.from == 0 : a.from > b.from;
    });
    if (dims.empty()) dims.push_back({1, 1, 1});
    window_.start(last + 1, dense_span(dims));
    walk(dims, base, out);
  }

  /// The number of elements that are read together: the span of the innermost dims that need at least an eighth of it.
  static std::uint64_t dense_span(const std::vector<Dim>& dims) {
    std::uint64_t span = 1, needed = 1;
    for (std::size_t d = dims.size(); d-- > 0 && dims[d].from != 0;) {
      const std::uint64_t wider = (dims[d].size - 1) * dims[d].from + span;
      needed *= dims[d].size;
      if (needed < wider / 8) break;
      span = wider;
    }
    return span;
  }

  void walk(const std::vector<Dim>& dims, std::uint64_t from, std::byte* out) {
    const std::size_t outer = dims.size() - 1;
    std::vector<std::uint64_t> index(outer, 0);
    for (;;) {
      run(dims[outer], from, out);
      std::size_t d = outer;
      for (;; --d) {
        if (d == 0) return;
        const Dim& dim = dims[d - 1];
        from += dim.from;
        out += dim.to * element_bytes_;
        if (++index[d - 1] < dim.size) break;
        from -= dim.from * dim.size;
        out -= dim.to * dim.size * element_bytes_;
        index[d - 1] = 0;
      }
    }
  }

  void run(const Dim& dim, std::uint64_t from, std::byte* out) {
    for (std::uint64_t done = 0; done < dim.size;) {
      const std::uint64_t position = from + done * dim.from;
      const std::byte* source = window_.at(position);
      const std::uint64_t left = dim.size - done;
      const std::uint64_t here =
          dim.from == 0 ? left : std::min(left, (window_.end() - position + dim.from - 1) / dim.from);
      copy(source, dim.from, out + done * dim.to * element_bytes_, dim.to, here);
      done += here;
    }
  }

  void copy(const std::byte* from, std::uint64_t from_step, std::byte* to, std::uint64_t to_step, std::uint64_t count) {
    if (from_step == 1 && to_step == 1) {
      std::memcpy(to, from, count * element_bytes_);
      return;
    }
    switch (element_bytes_) {
      case 1:
        return copy_elements<1>(from, from_step, to, to_step, count);
      case 2:
        return copy_elements<2>(from, from_step, to, to_step, count);
      case 4:
        return copy_elements<4>(from, from_step, to, to_step, count);
      case 8:
        return copy_elements<8>(from, from_step, to, to_step, count);
      case 16:
        return copy_elements<16>(from, from_step, to, to_step, count);
      default:
        throw std::logic_error("an element size that no type has");
    }
  }

  const TensorView& view_;
  Window window_;
  std::size_t element_bytes_;
};

}  // namespace

TensorView contiguous_view(DType dtype, const Shape& sizes) {
  TensorView view;
  view.dtype = dtype;
  view.sizes = view.strides = sizes;
  view.storage_bytes = view.length_bytes();
  if (view.storage_bytes == 0) return view;  // without elements the other sizes may be anything
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

void read_strided(const File& file, const TensorInFile& stored, std::uint64_t first, std::uint64_t count,
                  std::span<std::byte> out, std::vector<ReadSum>* sums) {
  StridedReader(file, stored, sums).range(0, stored.view.storage_offset, first, count, out.data());
}

}  // namespace fsdp
