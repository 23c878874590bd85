#pragma once
// Writes values of Arrow arrays as JSON.
#include <arrow/array.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::detail {

void append_json_string(std::string_view text, std::string& out);

/// Appends a value: strings, numbers, truth values, lists, structures and maps of these; null for null. Members of a
/// structure that are null are left out: all structures of a column have the same members, so null stands for none.
/// Numbers that are not finite are written as Python does: NaN, Infinity. Values of the type arrow.json become those
/// that their JSON stands for.
/// \param member  the value belongs to a structure: times, dates and decimals, too, become texts
/// \throws std::runtime_error naming a type that JSON cannot express; bytes that are no UTF-8
void append_json_value(const arrow::Array& array, std::int64_t index, std::string& out, bool member = false);

/// Appends the text that `json` stands for: a string, null for none, or a list of strings, which are joined by spaces.
/// \param element  the text is the element of a list: only a string will do
/// \throws std::runtime_error for other values
void append_text_of_json(std::string_view json, bool element, std::string& out);

/// Appends whether a value of any type is present: null for null, "" or [], as such or as JSON, else true.
void append_presence(const arrow::Array& array, std::int64_t index, std::string& out);

}  // namespace fsdp::detail
