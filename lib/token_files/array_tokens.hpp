#pragma once
// Token files that are one array of ids: a stream, or rows of one length.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "lib/token_files/id_array.hpp"
#include "lib/token_files/token_file.hpp"

namespace fsdp {

class ArrayTokens final : public TokenFile {
 public:
  /// A stream, in rows of `inputs` + 1 ids of which each begins with the last id of the row before; a stream of fewer
  /// ids is one shorter row. \param inputs  0: all of it is one document
  /// \throws FormatError for fewer than 2 ids
  static std::unique_ptr<TokenFile> stream(IdArray ids, std::int64_t inputs);
  /// Rows: id i of row r at place r * row_step + i * id_step.
  struct Rows {
    std::int64_t count, length, row_step, id_step;
  };
  static std::unique_ptr<TokenFile> rows(IdArray ids, const Rows& rows);

  std::int64_t num_records() const override { return rows_.count; }
  std::int64_t row_length() const override { return is_document_ ? 0 : rows_.length; }
  std::int64_t length(std::int64_t) const override { return rows_.length; }
  void read(std::int64_t record, std::span<std::int32_t> out) const override;
  TokenFileNotes notes() const override { return notes_; }

 private:
  ArrayTokens(IdArray ids, const Rows& rows, bool is_document, TokenFileNotes notes);
  void read_run(std::int64_t first, std::int64_t count, std::span<std::int32_t> out) const override;

  IdArray ids_;
  Rows rows_;
  bool is_document_;
  TokenFileNotes notes_;
};

/// \throws FormatError naming the file of a stream with fewer than 2 ids
void require_pair(const std::filesystem::path& file, std::int64_t ids);

/// The rows into which a stream of `ids` ids is cut: `count` of `length` ids, and the ids at the end that are in none.
struct StreamRows {
  std::int64_t count, length, left_out;
};
/// \param inputs  > 0. \pre ids > 1
StreamRows stream_rows(std::int64_t ids, std::int64_t inputs);

/// Reads rows that follow each other in a stream. \param step  from the begin of one row to that of the next
/// \param read  gives the ids of the stream from the begin of the first row on
void read_rows_of_stream(std::int64_t count, std::int64_t step, std::span<std::int32_t> out,
                         const std::function<void(std::span<std::int32_t>)>& read);

}  // namespace fsdp
