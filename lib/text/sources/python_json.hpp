#pragma once
// Values that Python's json module writes beyond JSON (NaN, Infinity, lone surrogates). A line with such a value is
// read as long as the value belongs to a key that is not used.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::detail {

/// `line` as JSON: NaN, Infinity and numbers beyond a double's range become a large number, which no key that is read
/// may hold, and half of a surrogate pair becomes kHalfCharacter.
/// \return nothing where there is no such value
std::optional<std::string> as_plain_json(std::string_view line);

/// U+FDD0, which is no character and never will be.
inline constexpr std::string_view kHalfCharacter = "\xef\xb7\x90";
inline constexpr const char* kHalfCharacterProblem =
    "half of a surrogate pair (\\ud800 to \\udfff), which is no character";

/// Some string in `value` has kHalfCharacter.
bool holds_half_character(const nlohmann::json& value);

}  // namespace fsdp::detail
