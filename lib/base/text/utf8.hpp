#pragma once
// UTF-8: where a text is valid, and where a stream of bytes may be cut.
#include <cstddef>
#include <string_view>

namespace fsdp {

/// Length in bytes of the character that `text` begins with; 0 when these bytes are not valid UTF-8 (overlong forms,
/// surrogates and values above U+10FFFF included) or `text` is empty.
std::size_t utf8_character_length(std::string_view text);

/// Length of the longest prefix that is valid UTF-8.
std::size_t utf8_valid_prefix(std::string_view text);
inline bool is_utf8(std::string_view text) { return utf8_valid_prefix(text) == text.size(); }

/// Length of the prefix that may be printed now: all but an incomplete last character (at most 3 bytes). Bytes that no
/// continuation can make valid are included.
std::size_t utf8_printable_prefix(std::string_view text);

}  // namespace fsdp
