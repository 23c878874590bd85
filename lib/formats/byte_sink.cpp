#include "lib/formats/byte_sink.hpp"

#include <algorithm>

#include "lib/formats/crc32.hpp"

namespace fsdp {
namespace {
constexpr std::size_t kBufferLimitBytes = 64u << 10;
// Pieces of this size are still in the second-level cache when the kernel copies them after the CRC.
constexpr std::size_t kSumPieceBytes = 512u << 10;
}  // namespace

ByteSink::ByteSink(const std::filesystem::path& path) : file_(File::create(path)) {}

std::uint32_t ByteSink::write(std::span<const std::byte> data) {
  std::uint32_t crc = 0;
  if (buffer_.size() + data.size() <= kBufferLimitBytes) {
    crc = fsdp::crc32(crc, data);
    if (!data.empty()) buffer_.append(reinterpret_cast<const char*>(data.data()), data.size());
  } else {
    flush();
    for (std::size_t done = 0; done < data.size(); done += kSumPieceBytes) {
      const auto piece = data.subspan(done, std::min(kSumPieceBytes, data.size() - done));
      crc = fsdp::crc32(crc, piece);
      file_.write(piece);
    }
  }
  crc32_ = crc32_combine(crc32_, crc, data.size());
  position_ += data.size();
  return crc;
}

std::uint32_t ByteSink::write(std::string_view text) {
  return write(std::as_bytes(std::span(text.data(), text.size())));
}

void ByteSink::flush() {
  file_.write(buffer_);
  buffer_.clear();
}

void ByteSink::finish() {
  flush();
  file_.sync();
  file_.close();
}

}  // namespace fsdp
