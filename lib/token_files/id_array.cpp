#include "lib/token_files/id_array.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

/// The number in these bytes; as large as possible where int64 cannot hold it.
std::int64_t number_of(const unsigned char* bytes, const NumberType& type) {
  std::uint64_t value = 0;
  for (int i = 0; i < type.bytes; ++i) value = value << 8 | bytes[type.is_big_endian ? i : type.bytes - 1 - i];
  const int unused_bits = 64 - 8 * type.bytes;
  if (type.is_signed) return static_cast<std::int64_t>(value << unused_bits) >> unused_bits;
  return value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())
             ? std::numeric_limits<std::int64_t>::max()
             : static_cast<std::int64_t>(value);
}

/// Widens numbers of 2 or 4 bytes of this machine, many at a time. \return false: they are others, or some are no ids
bool widen_usual(const std::vector<unsigned char>& bytes, const NumberType& type, std::span<std::int32_t> out) {
  constexpr bool is_little = std::endian::native == std::endian::little;
  if (type.is_big_endian == is_little) return false;
  if (type.bytes == 2 && !type.is_signed) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint16_t number = 0;
      std::memcpy(&number, bytes.data() + 2 * i, sizeof(number));
      out[i] = number;
    }
    return true;
  }
  if (type.bytes != 4) return false;
  std::memcpy(out.data(), bytes.data(), bytes.size());
  std::int32_t bits = 0;  // a sign bit is set in numbers that are no ids, signed or not
  for (const auto id : out) bits |= id;
  return bits >= 0;
}

}  // namespace

IdArray::IdArray(std::shared_ptr<const File> file, std::uint64_t offset, std::int64_t count, NumberType type)
    : file_(std::move(file)), offset_(offset), count_(count), type_(type) {
  const auto size = file_->size_bytes();
  const auto width = static_cast<std::uint64_t>(type.bytes);
  if (count >= 0 && offset <= size && static_cast<std::uint64_t>(count) <= (size - offset) / width) return;
  throw FormatError(
      fmt::format("{}: ends before its last id: {} ids of {} bytes from byte {} on are expected, and it has {} bytes",
                  file_->path().string(), count, width, offset, size));
}

void IdArray::read(std::int64_t first, std::span<std::int32_t> out, std::int64_t step) const {
  if (out.empty()) return;
  if (first < 0 || first + (std::ssize(out) - 1) * step >= count_)
    throw std::out_of_range(file_->path().string() + ": ids beyond the end are asked for");
  if (step != 1) {
    for (std::size_t i = 0; i < out.size(); ++i)
      read_block(first + static_cast<std::int64_t>(i) * step, out.subspan(i, 1));
    return;
  }
  constexpr std::size_t kBlock = std::size_t{1} << 18;
  for (std::size_t done = 0; done < out.size(); done += kBlock)
    read_block(first + static_cast<std::int64_t>(done), out.subspan(done, std::min(kBlock, out.size() - done)));
}

void IdArray::read_block(std::int64_t first, std::span<std::int32_t> out) const {
  const auto width = static_cast<std::size_t>(type_.bytes);
  std::vector<unsigned char> bytes(out.size() * width);
  file_->read_at(offset_ + static_cast<std::uint64_t>(first) * width, std::as_writable_bytes(std::span(bytes)));
  if (widen_usual(bytes, type_, out)) return;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto number = number_of(bytes.data() + i * width, type_);
    if (number < 0 || number > std::numeric_limits<std::int32_t>::max()) {
      throw FormatError(fmt::format("{}: position {}: {} is no token id, which is from 0 to 2147483647",
                                    file_->path().string(), first + static_cast<std::int64_t>(i), number));
    }
    out[i] = static_cast<std::int32_t>(number);
  }
}

}  // namespace fsdp
