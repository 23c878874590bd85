#include "lib/base/text/text_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace fsdp {
namespace {

/// Length of the UTF-8 sequence at the front of `text` if it is a printable character, otherwise 0.
std::size_t shown_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto first = byte(0);
  if (first < 0x80) return first == '\n' || first == '\t' || (first >= 0x20 && first != 0x7f) ? 1 : 0;
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0u) != 0x80) return 0;
  }
  if (first == 0xc2 && byte(1) < 0xa0) return 0;  // U+0080 to U+009F
  return size;
}

}  // namespace

std::string format_bytes(double bytes) {
  if (bytes >= 1073741824.0) return fmt::format("{:.2f} GiB", bytes / 1073741824.0);
  if (bytes >= 1048576.0) return fmt::format("{:.0f} MiB", bytes / 1048576.0);
  return fmt::format("{:.0f} KiB", bytes / 1024.0);
}

std::string format_count(std::int64_t n) {
  auto digits = std::to_string(n);
  for (auto at = std::ssize(digits) - 3; at > (n < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

std::string format_count_of(std::int64_t n, std::string_view noun, std::string_view plural) {
  if (n != 1 && !plural.empty()) return fmt::format("{} {}", format_count(n), plural);
  return fmt::format("{} {}{}", format_count(n), noun, n == 1 ? "" : "s");
}

std::string format_duration(double seconds) {
  const auto total = static_cast<std::int64_t>(std::max(0.0, seconds) + 0.5);
  if (total >= 3600) return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
  return fmt::format("{}:{:02}", total / 60, total % 60);
}

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const auto size = shown_bytes(text);
    if (size > 0) {
      shown += text.substr(0, size);
    } else {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    }
    text.remove_prefix(std::max<std::size_t>(1, size));
  }
  return shown;
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "/._-+=:,@%";
  bool is_plain = !text.empty();
  for (const char c : text)
    is_plain = is_plain && (std::isalnum(static_cast<unsigned char>(c)) != 0 || kPlain.find(c) != kPlain.npos);
  if (is_plain) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace fsdp
