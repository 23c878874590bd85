#pragma once
// Writes values of Arrow arrays as JSON.
#include <arrow/array.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::detail {

void append_json_string(std::string_view text, std::string& out);

/// Appends a value: strings, numbers, truth values, lists and structures of these; null for null. Numbers that are not
/// finite are written as Python does: NaN, Infinity.
/// \throws std::runtime_error naming a type that JSON cannot express
void append_json_value(const arrow::Array& array, std::int64_t index, std::string& out);

/// Appends whether a value of any type is present: null for null, "" or [], else true.
void append_presence(const arrow::Array& array, std::int64_t index, std::string& out);

}  // namespace fsdp::detail
