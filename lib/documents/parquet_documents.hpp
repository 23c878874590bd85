#pragma once
// Columns of Parquet files and Arrow streams as documents.
#include <memory>
#include <string>
#include <vector>

#include "lib/documents/data_piece.hpp"
#include "lib/documents/documents.hpp"

namespace fsdp {

/// Opens one column of a Parquet file: strings, or lists of strings, which are joined by spaces.
/// \param field  a top-level column; empty: `text`, else `Moves`
/// \throws as open_documents
std::unique_ptr<Documents> open_parquet(const DataPiece& piece, const std::string& field);

/// Opens columns of any kind together: each row is the text of a JSON object. \param fields  top-level columns; '?'
/// before one that may be missing; '!' before one of which, too, the object only has true, or null where it is empty
/// \throws as open_documents
std::unique_ptr<Documents> open_parquet_records(const DataPiece& piece, const std::vector<std::string>& fields);

}  // namespace fsdp
