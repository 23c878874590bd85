#pragma once
// Upper and lower case of texts, as Python's str has it: letters that become several, the final sigma, and letters that
// are numbers or symbols included.
#include <string>

namespace fsdp::jinja {

/// str.isupper(), str.islower() and str.istitle() of one character.
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);

/// str.upper() and the others of these names.
std::u32string upper(const std::u32string& text);
std::u32string lower(const std::u32string& text);
std::u32string capitalize(const std::u32string& text);
std::u32string title(const std::u32string& text);
std::u32string swapcase(const std::u32string& text);
std::u32string casefold(const std::u32string& text);

}  // namespace fsdp::jinja
