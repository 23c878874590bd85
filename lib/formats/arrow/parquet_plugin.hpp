#pragma once
// Apache Arrow, loaded at run time: its libraries have 60 MB and are needed for Parquet files and Arrow streams only.
//
// libfsdp_parquet.so lies beside the program; it is made of lib/formats/arrow/plugin where a Parquet library was found.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/formats/arrow/id_column.hpp"
#include "lib/formats/arrow/parquet_column.hpp"

namespace fsdp {

/// The names of the top-level columns of a Parquet file or an Arrow stream.
/// \throws FormatError naming the file; RuntimeFailure when the plugin is missing
std::vector<std::string> parquet_columns(const std::filesystem::path& file);

/// Bytes of each row group in a Parquet file. \throws as parquet_columns()
std::vector<std::int64_t> parquet_row_groups(const std::filesystem::path& file);

namespace detail {

struct ParquetPlugin {
  OpenParquetFunction* open_text;
  OpenParquetRecordsFunction* open_records;
  ParquetLinesFunction* columns;
  ParquetLinesFunction* row_groups;
  OpenIdsFunction* open_ids;
};

/// \param file  for the message. \throws RuntimeFailure when the plugin is missing
ParquetPlugin find_parquet_plugin(const std::filesystem::path& file);
/// True when the plugin is there.
bool has_parquet_plugin();

/// A failure of the plugin for people: without line ends at its end, and about encryption in other words.
std::string worded(const std::string& failure);

/// Where libfsdp_parquet.so may lie, for a program in `program_directory`.
std::vector<std::filesystem::path> parquet_plugin_candidates(const std::filesystem::path& program_directory);

/// \throws RuntimeFailure unless `library` loads and names `abi` as its own
ParquetPlugin open_parquet_plugin(const std::filesystem::path& library, const std::string& abi);

}  // namespace detail
}  // namespace fsdp
