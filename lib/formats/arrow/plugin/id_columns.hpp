#pragma once
// Columns of token ids in Parquet files and Arrow streams.
#include <memory>
#include <string>

#include "lib/formats/arrow/id_column.hpp"

namespace fsdp::detail {

/// Opens the column `field`, or where there is none `input_ids`, else `tokens`; of a Parquet file reads only the
/// footer. \return null when there is no such column of ids \throws std::exception when `input_ids` holds something
/// else than lists of whole numbers, and no texts are there
std::unique_ptr<IdColumn> open_id_column(const std::string& file, const std::string& field);

}  // namespace fsdp::detail
