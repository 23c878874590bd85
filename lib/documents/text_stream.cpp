#include "lib/documents/text_stream.hpp"

#include <algorithm>
#include <string_view>

#include "lib/base/types/error.hpp"

namespace fsdp::detail {
TextStream::TextStream(const DataPiece& piece)
    : file_(piece.file, piece.begin > 0 ? static_cast<std::uint64_t>(piece.begin - 1) : 0), end_(piece.end) {
  refill();
  if (piece.begin == 0) {
    if (!std::string_view(block_).starts_with("\xef\xbb\xbf")) return;
    at_ = 3;
    if (end_ > 0) end_ = std::max<std::int64_t>(end_, 4);  // the line begins with the mark
    return;
  }
  // The line that the byte before the piece belongs to is the last one of the piece before.
  for (int byte = get(); byte >= 0 && byte != '\n';) byte = get();
}

bool TextStream::refill() {
  at_ = 0;
  return file_.read(block_);
}

bool TextStream::next_line(std::string& line, std::int64_t line_number) {
  line.clear();
  if (peek() < 0 || (end_ > 0 && bytes_read() >= end_)) return false;
  while (peek() >= 0) {
    const auto rest = std::string_view(block_).substr(at_);
    const auto end = rest.find('\n');
    const auto count = std::min(end, rest.size());
    if (count > kMostText_bytes - line.size()) {
      throw FormatError(path().string() + ": line " + std::to_string(line_number) +
                        " is longer than 1 GiB; is this a file of lines?");
    }
    line.append(rest.substr(0, count));
    at_ += count;
    if (end != std::string_view::npos) {
      ++at_;
      break;
    }
  }
  return true;
}

}  // namespace fsdp::detail
