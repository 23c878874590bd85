#pragma once
// Reads values that Python's json module writes beyond JSON (NaN, Infinity, lone surrogates). A line with such a value
// is accepted when the value belongs to a key that is not used.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::detail {

/// Converts `line` to JSON: NaN, Infinity and numbers beyond the range of a double become a large number, which is
/// valid for no key that is read, and half of a surrogate pair becomes kHalfCharacter.
/// \return nothing when the line has no such value
std::optional<std::string> as_plain_json(std::string_view line);

/// U+FDD0, a noncharacter.
inline constexpr std::string_view kHalfCharacter = "\xef\xb7\x90";
inline constexpr const char* kHalfCharacterProblem =
    "half of a surrogate pair (\\ud800 to \\udfff), which is no character";

/// True when some string in `value` contains kHalfCharacter.
bool holds_half_character(const nlohmann::ordered_json& value);

}  // namespace fsdp::detail
