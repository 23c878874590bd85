#pragma once
// Checks used while reading a pickle.
#include <string>
#include <string_view>

#include "lib/files/formats/pickle_reader.hpp"
#include "lib/files/formats/pickle_value.hpp"

namespace fsdp::detail {

/// Strict UTF-8: shortest forms, no surrogates, nothing past U+10FFFF.
bool is_utf8(std::string_view text);

/// Two's complement, little-endian: an int64 where it fits, else decimal digits.
PickleValue::Data pickle_integer(std::string_view bytes);

/// Makes recursion over document.root safe. \throws FormatError on cycles, depth past the limit, or sharing that
/// makes a full walk visit more than the limit of values
void check_pickle_graph(const PickleDocument& document, const PickleLimits& limits, const std::string& file);

}  // namespace fsdp::detail
