#pragma once
// Parquet loaded at run time: Apache Arrow's libraries have 60 MB and are needed for these files only.
//
// libfsdp_parquet.so lies beside the program; it is made of lib/documents/plugin where a Parquet library was found.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/documents/data_piece.hpp"
#include "lib/documents/documents.hpp"
#include "lib/documents/plugin/parquet_column.hpp"

namespace fsdp {

/// Opens one column of a Parquet file: strings, or lists of strings, which are joined by spaces.
/// \param field  a top-level column; empty: `text`, else `Moves`
/// \throws as open_documents
std::unique_ptr<Documents> open_parquet(const DataPiece& piece, const std::string& field);

/// Opens columns of any kind together: each row is the text of a JSON object. \param fields  top-level columns; '?'
/// before one that may be missing; '!' before one of which, too, the object only has true, or null where it is empty
/// \throws as open_documents
std::unique_ptr<Documents> open_parquet_records(const DataPiece& piece, const std::vector<std::string>& fields);

/// The names of the top-level columns. \throws as open_documents
std::vector<std::string> parquet_columns(const std::filesystem::path& file);

/// Bytes of each row group in the file. \throws as open_documents
std::vector<std::int64_t> parquet_row_groups(const std::filesystem::path& file);

namespace detail {

struct ParquetPlugin {
  OpenParquetFunction* open_text;
  OpenParquetRecordsFunction* open_records;
  ParquetLinesFunction* columns;
  ParquetLinesFunction* row_groups;
};

/// Where libfsdp_parquet.so may lie, for a program in `program_directory`.
std::vector<std::filesystem::path> parquet_plugin_candidates(const std::filesystem::path& program_directory);

/// \throws RuntimeFailure unless `library` loads and names `abi` as its own
ParquetPlugin open_parquet_plugin(const std::filesystem::path& library, const std::string& abi);

}  // namespace detail
}  // namespace fsdp
