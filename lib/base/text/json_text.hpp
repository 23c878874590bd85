#pragma once
// Parsing and writing of JSON in one translation unit, because instantiating the library's templates costs seconds in
// every file that uses them.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fsdp {

/// Parses untrusted JSON (files, servers, ranks). The text is scanned first, because a parsed value takes up to a
/// hundred times the bytes of its text: values may be nested 64 levels deep, and there may be 4 million of them, which
/// is several times the number in the largest tokenizers and checkpoints. An object must not have a name twice, because
/// readers disagree on which value counts. \throws FormatError naming `source` and the byte at which a limit is
/// exceeded or a name repeated;
///         nlohmann::json::exception when `text` is not JSON, which callers translate
nlohmann::json parse_json(std::string_view text, const std::string& source);

/// Like parse_json(), but returns a discarded value when `text` is not JSON.
nlohmann::json parse_json_or_discard(std::string_view text, const std::string& source);

/// Like parse_json_or_discard(), for data: if an object has a name twice, the last value counts, as in Python.
nlohmann::json parse_data_or_discard(std::string_view text, const std::string& source);

/// Serializes a value on one line, or on several lines with `indent` spaces per level.
/// \throws nlohmann::json::type_error when a string is not UTF-8
std::string json_text(const nlohmann::json& value, int indent = -1);

/// Like json_text(), for people and reports: bytes that are not UTF-8 (in a file name, for example) become U+FFFD.
std::string printable_json(const nlohmann::json& value, int indent = -1);

}  // namespace fsdp
