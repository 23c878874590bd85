#include "lib/documents/data_piece.hpp"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "lib/base/files/file.hpp"
#include "lib/documents/documents.hpp"
#include "lib/documents/parquet_documents.hpp"
#include "lib/documents/text_stream.hpp"
#include "lib/formats/arrow/parquet_plugin.hpp"

namespace fsdp {
namespace {

/// True for one object a line, not compressed.
bool is_plain_lines(const std::filesystem::path& file) {
  if (data_file_kind(file) != DataFileKind::json_lines || detail::UnpackedFile(file).is_packed()) return false;
  return !detail::TextStream(file).begins_with('[');
}

std::vector<DataPiece> pieces_of_groups(const std::filesystem::path& file, std::int64_t piece_bytes) {
  const auto groups = parquet_row_groups(file);
  std::vector<DataPiece> pieces;
  std::int64_t begin = 0, bytes = 0;
  for (std::int64_t group = 0; group < std::ssize(groups); ++group) {
    bytes += std::clamp<std::int64_t>(groups[static_cast<std::size_t>(group)], 0, piece_bytes);
    if (bytes < piece_bytes && group + 1 < std::ssize(groups)) continue;
    pieces.emplace_back(file, begin, group + 1, bytes);
    begin = group + 1;
    bytes = 0;
  }
  return pieces;
}

}  // namespace

std::vector<DataPiece> cut_into_pieces(const std::filesystem::path& file, std::int64_t piece_bytes) {
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(file));
  const std::vector<DataPiece> whole{DataPiece(file, 0, 0, size)};
  if (size <= piece_bytes) return whole;
  std::vector<DataPiece> pieces;
  if (data_file_kind(file) == DataFileKind::parquet) pieces = pieces_of_groups(file, piece_bytes);
  if (is_plain_lines(file)) {
    for (std::int64_t begin = 0; begin < size; begin += piece_bytes)
      pieces.emplace_back(file, begin, std::min(begin + piece_bytes, size), std::min(piece_bytes, size - begin));
  }
  return pieces.size() > 1 ? pieces : whole;
}

std::int64_t lines_in(const DataPiece& piece) {
  const auto handle = File::open_read(piece.file);
  std::string block(std::size_t{1} << 20, '\0');
  // The line end before a line may be the last byte of the piece before.
  std::int64_t lines = piece.begin == 0 ? 1 : 0;
  for (auto at = std::max<std::int64_t>(piece.begin - 1, 0); at < piece.end - 1;) {
    const auto size = static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(block), piece.end - 1 - at));
    handle.read_at(static_cast<std::uint64_t>(at), std::as_writable_bytes(std::span(block).first(size)));
    lines += std::count(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(size), '\n');
    at += static_cast<std::int64_t>(size);
  }
  return lines;
}

std::int64_t lines_before(const DataPiece& piece) {
  return piece.begin == 0 ? 0 : lines_in({piece.file, 0, piece.begin});
}

std::string with_lines_before(const DataPiece& piece, const std::string& text, std::int64_t lines) {
  const auto mark = piece.file.string() + ": line ";
  std::int64_t number = 0;
  if (!text.starts_with(mark)) return text;
  const auto* first = text.data() + mark.size();
  const auto [last, error] = std::from_chars(first, text.data() + text.size(), number);
  return error == std::errc() ? mark + std::to_string(number + lines) + std::string(last, text.data() + text.size())
                              : text;
}

}  // namespace fsdp
