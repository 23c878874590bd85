#pragma once
// Numbers as people read them in log lines and tables, and texts of others as a terminal may show them.
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

/// "1.50 GiB", "12 MiB", "3 KiB"
std::string format_bytes(double bytes);
/// "1,234,567"
std::string format_count(std::int64_t n);
/// "1 text", "2,000 texts"; \param plural  where it is not an s more
std::string format_count_of(std::int64_t n, std::string_view noun, std::string_view plural = {});
/// "1:02:03" or "2:03"
std::string format_duration(double seconds);

/// `text` with what a terminal would obey instead of showing it as "\x1b": control characters but for line ends and
/// tabs, and bytes that are no UTF-8.
std::string printable(std::string_view text);

// Names that are compared without regard to case.

/// The text with ASCII's capitals made small, whatever the locale; other bytes stay.
inline std::string ascii_lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

}  // namespace fsdp
