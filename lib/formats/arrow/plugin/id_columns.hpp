#pragma once
// Columns of token ids in Parquet files and Arrow streams.
#include <memory>
#include <string>

#include "lib/formats/arrow/plugin/id_column.hpp"

namespace fsdp::detail {

/// Opens the column `input_ids`, else `tokens`; of a Parquet file reads only the footer.
/// \return null when the file has neither
/// \throws std::exception when the column holds something else than lists of whole numbers
std::unique_ptr<IdColumn> open_id_column(const std::string& file);

}  // namespace fsdp::detail
