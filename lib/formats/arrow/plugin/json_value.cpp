#include "lib/formats/arrow/plugin/json_value.hpp"

#include <arrow/extension_type.h>
#include <arrow/scalar.h>
#include <arrow/type_traits.h>
#include <arrow/util/config.h>
#include <arrow/util/utf8.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "lib/base/types/half_float.hpp"

namespace fsdp::detail {
namespace {

void append_elements(const arrow::Array& values, std::int64_t begin, std::int64_t end, bool member, std::string& out) {
  out += '[';
  for (auto i = begin; i < end; ++i) {
    if (i > begin) out += ',';
    append_json_value(values, i, out, member);
  }
  out += ']';
}

void append_structure(const arrow::StructArray& array, std::int64_t index, std::string& out) {
  out += '{';
  for (int i = 0; i < array.num_fields(); ++i) {
    const auto member = array.field(i);
    if (member->IsNull(index)) continue;
    if (out.back() != '{') out += ',';
    append_json_string(array.type()->field(i)->name(), out);
    out += ':';
    append_json_value(*member, index, out, true);
  }
  out += '}';
}

/// Keys that are no strings are written as such, as Python does.
void append_map(const arrow::MapArray& map, std::int64_t index, std::string& out) {
  out += '{';
  for (auto i = map.value_offset(index); i < map.value_offset(index + 1); ++i) {
    if (i > map.value_offset(index)) out += ',';
    std::string key;
    append_json_value(*map.keys(), i, key, true);
    if (key.starts_with('"')) {
      out += key;
    } else {
      append_json_string(key, out);
    }
    out += ':';
    append_json_value(*map.items(), i, out, true);
  }
  out += '}';
}

template <class List>
void append_list(const arrow::Array& array, std::int64_t index, bool member, std::string& out) {
  const auto& list = static_cast<const List&>(array);
  const auto begin = static_cast<std::int64_t>(list.value_offset(index));
  append_elements(*list.values(), begin, begin + static_cast<std::int64_t>(list.value_length(index)), member, out);
}

template <class Number>
void append_integer(const arrow::Array& array, std::int64_t index, std::string& out) {
  out += std::to_string(static_cast<const Number&>(array).Value(index));
}

/// Writes the shortest digits that identify this number as a double, as Python has it, and ".0" after a whole one, so
/// that it stays no integer; numbers that are not finite as Python does.
void append_real(double value, std::string& out) {
  if (!std::isfinite(value)) {
    out += std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
    return;
  }
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  const std::string_view text(digits.data(), end);
  out += text;
  if (text.find_first_of(".e") == text.npos) out += ".0";
}

/// Writes a text. \param type  for the message
void append_text(std::string_view text, const arrow::DataType& type, std::string& out) {
  static const bool ready = (arrow::util::InitializeUTF8(), true);
  if (!ready || !arrow::util::ValidateUTF8(text))
    throw std::runtime_error("holds " + type.ToString() + " that is no UTF-8, expected text");
  append_json_string(text, out);
}

/// Writes the value whose JSON `text` is. \throws std::runtime_error
void append_json(std::string_view text, std::string& out) {
  if (!nlohmann::json::accept(text)) throw std::runtime_error("holds a value of the type JSON that is no JSON");
  out += text;
}

/// Times, dates and decimals as texts: 2026-01-31 12:30:00, 1.50.
void append_printed(const arrow::Array& array, std::int64_t index, std::string& out) {
  const auto scalar = array.GetScalar(index);
  if (!scalar.ok()) throw std::runtime_error(scalar.status().message());
  auto text = (*scalar)->ToString();
  const auto point = text.rfind(".0");
  const bool has_time = arrow::is_temporal(array.type_id()) && point != text.npos;
  if (has_time) {
    const auto end = std::min(text.find_first_not_of('0', point + 1), text.size());
    if (end == text.size() || text[end] == 'Z') text.erase(point, end - point);
  }
  append_json_string(text, out);
}

/// The bytes of a text, or of binary data; nothing for other types.
std::optional<std::string_view> text_of(const arrow::Array& array, std::int64_t index) {
  using Type = arrow::Type;
  switch (array.type_id()) {
    case Type::STRING:
    case Type::BINARY:
      return static_cast<const arrow::BinaryArray&>(array).GetView(index);
    case Type::LARGE_STRING:
    case Type::LARGE_BINARY:
      return static_cast<const arrow::LargeBinaryArray&>(array).GetView(index);
    case Type::FIXED_SIZE_BINARY:
      return static_cast<const arrow::FixedSizeBinaryArray&>(array).GetView(index);
#if ARROW_VERSION_MAJOR >= 15
    case Type::STRING_VIEW:
    case Type::BINARY_VIEW:
      return static_cast<const arrow::BinaryViewArray&>(array).GetView(index);
#endif
    default:
      return {};
  }
}

/// Writes a value of a type that others define: JSON as its value, each other as what it is stored as.
void append_extension(const arrow::ExtensionArray& array, std::int64_t index, bool member, std::string& out) {
  const bool is_json = static_cast<const arrow::ExtensionType&>(*array.type()).extension_name() == "arrow.json";
  const auto text = is_json ? text_of(*array.storage(), index) : std::nullopt;
  text ? append_json(*text, out) : append_json_value(*array.storage(), index, out, member);
}

/// "" or [], as such or as JSON.
bool is_empty(const arrow::Array& array, std::int64_t index) {
  using Type = arrow::Type;
  if (const auto text = text_of(array, index)) return text->empty();
  switch (array.type_id()) {
    case Type::EXTENSION: {
      std::string value;
      append_extension(static_cast<const arrow::ExtensionArray&>(array), index, true, value);
      const auto json = nlohmann::json::parse(value, nullptr, false);
      if (const auto* text = json.get_ptr<const std::string*>()) return text->empty();
      return json.is_null() || (json.is_structured() && json.empty());
    }
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

void append_json_value(const arrow::Array& array, std::int64_t index, std::string& out, bool member) {
  using Type = arrow::Type;
  if (array.IsNull(index)) {
    out += "null";
    return;
  }
  if (const auto text = text_of(array, index)) return append_text(*text, *array.type(), out);
  if (member && (arrow::is_temporal(array.type_id()) || arrow::is_decimal(array.type_id())))
    return append_printed(array, index, out);
  switch (array.type_id()) {
    case Type::STRUCT:
      return append_structure(static_cast<const arrow::StructArray&>(array), index, out);
    case Type::LIST:
      return append_list<arrow::ListArray>(array, index, member, out);
    case Type::LARGE_LIST:
      return append_list<arrow::LargeListArray>(array, index, member, out);
    case Type::FIXED_SIZE_LIST:
      return append_list<arrow::FixedSizeListArray>(array, index, member, out);
    case Type::MAP:
      return append_map(static_cast<const arrow::MapArray&>(array), index, out);
    case Type::EXTENSION:
      return append_extension(static_cast<const arrow::ExtensionArray&>(array), index, member, out);
    case Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return append_json_value(*coded.dictionary(), coded.GetValueIndex(index), out, member);
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
      throw std::runtime_error("holds " + array.type()->ToString() +
                               ", expected strings, numbers, and lists and structures of them");
  }
}

void append_text_of_json(std::string_view json, bool element, std::string& out) {
  const auto value = nlohmann::json::parse(json, nullptr, false);
  const auto fail = [&](const std::string& what) {
    throw std::runtime_error("holds JSON that is " + what + ", expected a string" +
                             (element ? "" : " or a list of strings"));
  };
  if (value.is_discarded()) fail("malformed");
  if (value.is_null() && !element) return;
  if (value.is_string()) {
    out += value.get_ref<const std::string&>();
    return;
  }
  if (element || !value.is_array()) fail(std::string("a value of the type ") + value.type_name());
  for (const auto& part : value) {
    if (!part.is_string()) fail("a list with a value of the type " + std::string(part.type_name()));
    if (&part != &value.front()) out += ' ';
    out += part.get_ref<const std::string&>();
  }
}

void append_presence(const arrow::Array& array, std::int64_t index, std::string& out) {
  out += array.IsNull(index) || is_empty(array, index) ? "null" : "true";
}

}  // namespace fsdp::detail
