#pragma once
// The interface between a program and libfsdp_parquet.so. It uses the standard library only, so that Arrow's headers
// meet no others.
#include <cstdint>
#include <string>

namespace fsdp::detail {

/// One column of one file, or several together, read from front to back. No exception crosses this interface.
class ParquetColumn {
 public:
  virtual ~ParquetColumn() = default;
  enum class Step { document, end, failed };
  /// Replaces `text` by the value of the next row, or after a failure by the problem, without the name of the file.
  virtual Step next(std::string& text) noexcept = 0;
  /// Number of the row that next() returned last, from 0.
  virtual std::int64_t row() const noexcept = 0;
  virtual std::int64_t num_rows() const noexcept = 0;
};

/// Program and plugin exchange C++ objects, so both must come from one build. Increase the number when ParquetColumn
/// changes.
inline constexpr const char* kParquetPluginAbi = "fsdp " FSDP_VERSION ", Parquet interface 7";

/// The row groups of a Parquet file that are read: [begin, end); end 0: all.
struct RowGroups {
  std::int64_t begin = 0, end = 0;
};

/// The symbols of libfsdp_parquet.so.
using ParquetAbiFunction = const char*();
/// \param field  a top-level column; empty: `text`, else `Moves`
/// \return null when it failed; `failure` then says why, without the file's name
using OpenParquetFunction = ParquetColumn*(const char* file, const char* field, RowGroups groups, std::string* failure);
/// Each row of several columns as the text of a JSON object. \param fields  one a line; '?' before one that may be
/// missing; '!' before one of which, too, it only counts whether it says something: null where it does not, else true
using OpenParquetRecordsFunction = ParquetColumn*(const char* file, const char* fields, RowGroups groups,
                                                  std::string* failure);
/// Replaces `lines` by the names of the top-level columns, or by the bytes of the row groups, one a line. \return false
/// when it failed
using ParquetLinesFunction = bool(const char* file, std::string* lines, std::string* failure);
inline constexpr const char* kParquetAbiSymbol = "fsdp_parquet_abi";
inline constexpr const char* kOpenParquetSymbol = "fsdp_open_parquet";
inline constexpr const char* kOpenParquetRecordsSymbol = "fsdp_open_parquet_records";
inline constexpr const char* kParquetColumnsSymbol = "fsdp_parquet_columns";
inline constexpr const char* kParquetRowGroupsSymbol = "fsdp_parquet_row_groups";

}  // namespace fsdp::detail
