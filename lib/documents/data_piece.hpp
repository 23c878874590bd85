#pragma once
// Parts of data files that can be read by themselves, so that several processes share one file.
#include <cstdint>
#include <filesystem>
#include <vector>

namespace fsdp {

/// A file, or a part of one: of JSON Lines the lines that begin in a range of bytes, of Parquet row groups.
struct DataPiece {
  // A file stands for the piece that is all of it.
  DataPiece(std::filesystem::path path, std::int64_t first = 0, std::int64_t after = 0, std::int64_t size = 0)
      : file(std::move(path)), begin(first), end(after), bytes(size) {}
  bool is_whole() const { return end == 0; }

  std::filesystem::path file;
  std::int64_t begin;  ///< first byte, or first row group
  std::int64_t end;    ///< the one after the last; 0: all
  std::int64_t bytes;  ///< of the file, about; 0: not looked up
};

/// Cuts a file into pieces of about so many bytes, in order; together they hold each document once. Compressed files,
/// lists of JSON, CSV, Arrow streams and plain texts are one piece: where a document of these begins cannot be seen
/// from the middle.
/// \param piece_bytes  above 0
/// \throws IoError; FormatError as data_file_kind(), and for damaged Parquet
std::vector<DataPiece> cut_into_pieces(const std::filesystem::path& file, std::int64_t piece_bytes);

/// Lines that begin in a piece of JSON Lines that is not the whole file. Reads the piece. \throws IoError
std::int64_t lines_in(const DataPiece& piece);

/// Lines before the first one of such a piece. Reads the file up to there. \throws IoError
std::int64_t lines_before(const DataPiece& piece);

/// "FILE: line 12: ..." with another number of the line; other texts unchanged. \param lines  to be added
std::string with_lines_before(const DataPiece& piece, const std::string& text, std::int64_t lines);

}  // namespace fsdp
