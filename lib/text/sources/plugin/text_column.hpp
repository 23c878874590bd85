#pragma once
#include <memory>
#include <string>

#include "lib/text/sources/plugin/parquet_column.hpp"

namespace fsdp::detail {

/// Opens a column, reading the file's footer only. \throws std::exception
std::unique_ptr<ParquetColumn> open_text_column(const std::string& file, const std::string& field);

}  // namespace fsdp::detail
