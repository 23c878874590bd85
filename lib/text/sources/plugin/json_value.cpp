#include "lib/text/sources/plugin/json_value.hpp"

#include <arrow/util/config.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>

namespace fsdp::detail {
namespace {

void append_elements(const arrow::Array& values, std::int64_t begin, std::int64_t end, std::string& out) {
  out += '[';
  for (auto i = begin; i < end; ++i) {
    if (i > begin) out += ',';
    append_json_value(values, i, out);
  }
  out += ']';
}

void append_structure(const arrow::StructArray& array, std::int64_t index, std::string& out) {
  out += '{';
  for (int i = 0; i < array.num_fields(); ++i) {
    if (i > 0) out += ',';
    append_json_string(array.type()->field(i)->name(), out);
    out += ':';
    append_json_value(*array.field(i), index, out);
  }
  out += '}';
}

template <class List>
void append_list(const arrow::Array& array, std::int64_t index, std::string& out) {
  const auto& list = static_cast<const List&>(array);
  const auto begin = static_cast<std::int64_t>(list.value_offset(index));
  append_elements(*list.values(), begin, begin + static_cast<std::int64_t>(list.value_length(index)), out);
}

template <class Number>
void append_integer(const arrow::Array& array, std::int64_t index, std::string& out) {
  out += std::to_string(static_cast<const Number&>(array).Value(index));
}

/// Writes the shortest digits that identify this number; numbers that are not finite as Python does.
template <class Real>
void append_real(Real value, std::string& out) {
  if (!std::isfinite(value)) {
    out += std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
    return;
  }
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), end);
}

/// IEEE 754's binary16.
float half_to_float(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 0x1f)
    return sign * (fraction == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN());
  return sign * std::ldexp(static_cast<float>(exponent == 0 ? fraction : fraction | 0x400), std::max(exponent, 1) - 25);
}

#if ARROW_VERSION_MAJOR >= 15
std::optional<std::string_view> viewed_string(const arrow::Array& array, std::int64_t index) {
  if (array.type_id() != arrow::Type::STRING_VIEW) return std::nullopt;
  return static_cast<const arrow::StringViewArray&>(array).GetView(index);
}
#else
std::optional<std::string_view> viewed_string(const arrow::Array&, std::int64_t) { return std::nullopt; }
#endif

/// "" or [].
bool is_empty(const arrow::Array& array, std::int64_t index) {
  using Type = arrow::Type;
  switch (array.type_id()) {
    case Type::STRING:
      return static_cast<const arrow::StringArray&>(array).value_length(index) == 0;
    case Type::LARGE_STRING:
      return static_cast<const arrow::LargeStringArray&>(array).value_length(index) == 0;
    case Type::LIST:
      return static_cast<const arrow::ListArray&>(array).value_length(index) == 0;
    case Type::LARGE_LIST:
      return static_cast<const arrow::LargeListArray&>(array).value_length(index) == 0;
    default:
      return false;
  }
}

}  // namespace

void append_json_string(std::string_view text, std::string& out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kDigits[byte >> 4U];
      out += kDigits[byte & 0xfU];
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_json_value(const arrow::Array& array, std::int64_t index, std::string& out) {
  using Type = arrow::Type;
  if (array.IsNull(index)) {
    out += "null";
    return;
  }
  switch (array.type_id()) {
    case Type::STRING:
      return append_json_string(static_cast<const arrow::StringArray&>(array).GetView(index), out);
    case Type::LARGE_STRING:
      return append_json_string(static_cast<const arrow::LargeStringArray&>(array).GetView(index), out);
    case Type::STRUCT:
      return append_structure(static_cast<const arrow::StructArray&>(array), index, out);
    case Type::LIST:
      return append_list<arrow::ListArray>(array, index, out);
    case Type::LARGE_LIST:
      return append_list<arrow::LargeListArray>(array, index, out);
    case Type::FIXED_SIZE_LIST:
      return append_list<arrow::FixedSizeListArray>(array, index, out);
    case Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return append_json_value(*coded.dictionary(), coded.GetValueIndex(index), out);
    }
    case Type::BOOL:
      out += static_cast<const arrow::BooleanArray&>(array).Value(index) ? "true" : "false";
      return;
    case Type::INT32:
      return append_integer<arrow::Int32Array>(array, index, out);
    case Type::INT64:
      return append_integer<arrow::Int64Array>(array, index, out);
    case Type::INT16:
      return append_integer<arrow::Int16Array>(array, index, out);
    case Type::UINT16:
      return append_integer<arrow::UInt16Array>(array, index, out);
    case Type::UINT32:
      return append_integer<arrow::UInt32Array>(array, index, out);
    case Type::UINT64:
      return append_integer<arrow::UInt64Array>(array, index, out);
    case Type::HALF_FLOAT:
      return append_real(half_to_float(static_cast<const arrow::HalfFloatArray&>(array).Value(index)), out);
    case Type::INT8:
      return append_integer<arrow::Int8Array>(array, index, out);
    case Type::UINT8:
      return append_integer<arrow::UInt8Array>(array, index, out);
    case Type::FLOAT:
      return append_real(static_cast<const arrow::FloatArray&>(array).Value(index), out);
    case Type::DOUBLE:
      return append_real(static_cast<const arrow::DoubleArray&>(array).Value(index), out);
    default:
      if (const auto text = viewed_string(array, index)) return append_json_string(*text, out);
      throw std::runtime_error("holds " + array.type()->ToString() +
                               ", expected strings, numbers, and lists and structures of them");
  }
}

void append_presence(const arrow::Array& array, std::int64_t index, std::string& out) {
  out += array.IsNull(index) || is_empty(array, index) ? "null" : "true";
}

}  // namespace fsdp::detail
