#pragma once
// Columns of a Parquet file, or of an Arrow stream, as documents.
#include <memory>
#include <string>
#include <string_view>

#include "lib/formats/arrow/parquet_column.hpp"

namespace fsdp::detail {

/// Opens a column; reads only the footer of the file. \throws std::exception
std::unique_ptr<ParquetColumn> open_text_column(const std::string& file, const std::string& field, RowGroups groups);

/// Opens several columns of either kind of file together: each row becomes the text of a JSON object.
/// \param fields  top-level columns, one a line; one that begins with '!' or '?' may be missing
/// \throws std::exception
std::unique_ptr<ParquetColumn> open_record_columns(const std::string& file, std::string_view fields, RowGroups groups);

/// Returns the names of the top-level columns, one a line. \throws std::exception
std::string column_lines(const std::string& file);

/// Returns the bytes of each row group of a Parquet file, one a line. \throws std::exception
std::string row_group_lines(const std::string& file);

}  // namespace fsdp::detail
