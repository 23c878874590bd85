#include "lib/text/tokenizer/character_kinds.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>

#include "lib/text/tokenizer/utf8.hpp"

namespace fsdp {
namespace {

struct Character {
  std::int32_t code = -1;  ///< -1: none
  std::size_t bytes = 0;
};

Character first_of(std::string_view text) {
  const std::size_t bytes = utf8_character_length(text);
  if (bytes == 0) return {};
  Character character{-1, bytes};
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(bytes),
                   &character.code);
  return character;
}

Character last_of(std::string_view text) {
  for (std::size_t bytes = 1; bytes <= std::min<std::size_t>(4, text.size()); ++bytes) {
    const auto character = first_of(text.substr(text.size() - bytes));
    if (character.bytes == bytes) return character;
  }
  return {};
}

bool is_space(std::int32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_word(std::int32_t c) {
  // Alphabetic though no letters: what is circled or squared.
  if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
      (c >= 0x1f170 && c <= 0x1f189))
    return true;
  if (c == 0x200c || c == 0x200d) return true;
  switch (c < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::size_t leading_space(std::string_view text) {
  std::size_t bytes = 0;
  for (auto next = first_of(text); next.bytes > 0 && is_space(next.code); next = first_of(text.substr(bytes)))
    bytes += next.bytes;
  return bytes;
}

std::size_t trailing_space(std::string_view text) {
  std::size_t bytes = 0;
  for (auto last = last_of(text); last.bytes > 0 && is_space(last.code);
       last = last_of(text.substr(0, text.size() - bytes)))
    bytes += last.bytes;
  return bytes;
}

bool begins_with_word(std::string_view text) { return is_word(first_of(text).code); }
bool ends_with_word(std::string_view text) { return is_word(last_of(text).code); }

}  // namespace fsdp
