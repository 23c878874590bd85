#pragma once
// JSON as text, compiled once: the library's parser and writer are templates that cost each file that uses them
// seconds.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fsdp {

/// The value of JSON that others wrote (files, servers, ranks). It is looked over before it is parsed, since a parsed
/// value takes up to a hundred times the bytes of its text: no value may lie deeper than 64 levels, and there may be 4
/// million of them, several times what the largest tokenizers and checkpoints have. No object may have a name twice, of
/// which readers take one or the other.
/// \throws FormatError naming `source` and the byte where there is too much of it, or a name twice, and that name;
/// nlohmann::json::exception where it is no JSON, which callers word by what they read
nlohmann::json parse_json(std::string_view text, const std::string& source);

/// The same, but a discarded value where it is no JSON.
nlohmann::json parse_json_or_discard(std::string_view text, const std::string& source);

/// The same for data: the last value of a name that an object has twice counts, as in Python.
nlohmann::json parse_data_or_discard(std::string_view text, const std::string& source);

/// The text of a value; `indent` spaces a level on lines of their own, or all on one line.
/// \throws nlohmann::json::type_error where a string is not UTF-8
std::string json_text(const nlohmann::json& value, int indent = -1);

/// The same for people and reports: bytes that are no UTF-8 (a file's name, say) become U+FFFD.
std::string printable_json(const nlohmann::json& value, int indent = -1);

}  // namespace fsdp
