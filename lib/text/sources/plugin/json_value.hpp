#pragma once
// One value of an Arrow array as JSON.
#include <arrow/array.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::detail {

void append_json_string(std::string_view text, std::string& out);

/// Strings, numbers, truth values, lists and structures of these; null where the value is.
/// Numbers that are not finite are written as Python does: NaN, Infinity.
/// \throws std::runtime_error naming a type that has no place in JSON
void append_json_value(const arrow::Array& array, std::int64_t index, std::string& out);

/// Appends whether a value of any type is there: null for null, "" or [], else true.
void append_presence(const arrow::Array& array, std::int64_t index, std::string& out);

}  // namespace fsdp::detail
