#pragma once
// Which column of a Parquet file holds the texts, and how its levels say what a row is.
#include <parquet/schema.h>

#include <cstdint>
#include <string>

namespace fsdp::detail {

/// A leaf of byte strings, once per row or in one list per row. Of the definition levels (the Dremel encoding) there is
/// one for every optional or repeated node on the way from the root to the leaf.
struct ColumnChoice {
  int leaf = 0;                  ///< among all leaves of the file
  bool list = false;             ///< an element of a list; otherwise the cell itself
  std::int16_t list_level = 0;   ///< definition level from which on there is an element
  std::int16_t value_level = 0;  ///< definition level of a value that is not null
  std::string name;
};

/// "'text', 'Moves'", for messages.
std::string column_names(const parquet::schema::GroupNode& root);

/// The place of the top-level column `name`; -1: there is none. \throws std::runtime_error when there are two
int find_column(const parquet::schema::GroupNode& root, const std::string& name);

/// \param field  a top-level column; empty: `text`, else `Moves`
/// \throws std::runtime_error when there is no such column or it holds no texts, saying which there are
ColumnChoice choose_column(const parquet::SchemaDescriptor& schema, const std::string& field);

}  // namespace fsdp::detail
