#pragma once
// The samples of a JSON file, as text: the lines of JSON Lines, or the elements of a list (an array of objects, on one
// line or on many), which is read element by element.
#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/documents/text_stream.hpp"

namespace fsdp::detail {

class JsonSamples {
 public:
  /// The first character decides: '[' begins a list.
  /// \param piece  of a file of lines: places count from its first line
  /// \throws IoError; FormatError
  explicit JsonSamples(const DataPiece& piece);

  /// Replaces `text` by the next sample, which may be no JSON. Empty lines are skipped.
  /// \return false at the end
  /// \throws FormatError naming file and place of what is no list, and of a sample of more than kMostText_bytes; naming
  ///   the key when the file is one object that holds a list of objects; IoError
  bool next(std::string& text);

  /// "FILE: line 12" (from 1), "FILE: element 12 at byte 3456" (elements from 1, bytes from 0, of compressed files
  /// those of the content).
  std::string where() const;
  std::int64_t bytes_read() const { return stream_.bytes_read(); }
  const std::filesystem::path& path() const { return stream_.path(); }

  bool is_from_start() const { return is_from_start_; }
  /// True if the sample that next() returned last is the only one of the file. Reads on.
  bool is_single();

 private:
  int get();
  int skip_blanks();
  bool next_element(std::string& text);
  void read_element(std::string& text);
  void add(std::string& text, int byte) const;
  [[noreturn]] void fail(const std::string& problem) const;

  TextStream stream_;
  bool is_from_start_;  ///< not from the middle of a file
  bool is_list_ = false, ended_ = false;
  std::int64_t number_ = 0;  ///< of the line or element
  std::int64_t at_ = 0;      ///< bytes of a list that were read
  std::int64_t begin_ = 0;   ///< of the element
};

/// The problem of a file that is one object with a list of objects in it, and the cure; empty for other files. Reads at
/// most 1 MiB.
std::string list_in_object(const std::filesystem::path& file);

}  // namespace fsdp::detail
