#pragma once
// Reads a text file once from front to back in blocks.
#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/documents/data_piece.hpp"
#include "lib/documents/unpacked_file.hpp"

namespace fsdp::detail {

/// Largest size of a line or cell: a file without line ends, or with an unclosed quote, is not read into memory as a
/// whole.
inline constexpr std::size_t kMostText_bytes = std::size_t{1} << 30;

class TextStream {
 public:
  /// Opens the file, compressed or not, and skips a UTF-8 byte-order mark.
  /// \param piece  of a file that is not compressed: the lines that begin at one of its bytes
  /// \throws IoError; FormatError
  explicit TextStream(const DataPiece& piece);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Returns the next byte, or -1 at the end. \throws IoError
  int get() {
    if (at_ == block_.size() && !refill()) return -1;
    return static_cast<unsigned char>(block_[at_++]);
  }
  int peek() {
    if (at_ == block_.size() && !refill()) return -1;
    return static_cast<unsigned char>(block_[at_]);
  }
  /// True if `c` is the first byte in the block at hand (up to 1 MiB) that is no blank and no line end.
  bool begins_with(char c) const {
    const auto first = block_.find_first_not_of(" \t\r\n", at_);
    return first != std::string::npos && block_[first] == c;
  }
  /// Bytes of the block at hand that were read or skipped.
  std::size_t offset() const { return at_; }
  /// Replaces `line` by the bytes up to the next '\n', which is skipped.
  /// \param line_number  for the message
  /// \return false at the end
  /// \throws FormatError when the line is longer than kMostText_bytes
  bool next_line(std::string& line, std::int64_t line_number);

  /// Number of bytes of the file that get() and next_line() returned; of a compressed one those that were unpacked.
  std::int64_t bytes_read() const {
    return file_.is_packed() ? file_.bytes_read() : file_.bytes_read() - static_cast<std::int64_t>(block_.size() - at_);
  }

 private:
  bool refill();

  UnpackedFile file_;
  std::string block_;
  std::size_t at_ = 0;
  std::int64_t end_;  ///< no line begins here or later; 0: the end of the file
};

}  // namespace fsdp::detail
