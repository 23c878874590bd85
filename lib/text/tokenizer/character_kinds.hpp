#pragma once
// Unicode's white space and word characters, as \s and \w of Rust's regex.
#include <cstddef>
#include <string_view>

namespace fsdp {

/// Bytes of White_Space that `text` begins with.
std::size_t leading_space(std::string_view text);
/// ... that it ends with.
std::size_t trailing_space(std::string_view text);

/// Letters, marks, decimal digits, connecting punctuation, joiners (UTS #18, annex C). Bytes that are no UTF-8 are
/// none.
bool begins_with_word(std::string_view text);
bool ends_with_word(std::string_view text);

}  // namespace fsdp
