#pragma once
// Text for people: numbers in log lines and tables, and untrusted text made safe for a terminal.
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

/// "1.50 GiB", "12 MiB", "3 KiB"
std::string format_bytes(double bytes);
/// "1,234,567"
std::string format_count(std::int64_t n);
/// "1 text", "2,000 texts" \param plural  plural of `noun` if it is not formed with an s
std::string format_count_of(std::int64_t n, std::string_view noun, std::string_view plural = {});
/// "1:02:03" or "2:03"
std::string format_duration(double seconds);

/// Escapes, in the form "\x1b", what a terminal would interpret: control characters except newlines and tabs, and bytes
/// that are not UTF-8.
std::string printable(std::string_view text);

/// Quotes `text`, where necessary, as one word of a POSIX shell.
std::string shell_word(const std::string& text);

/// Converts ASCII capitals to lower case, independent of the locale. Other bytes are unchanged.
inline std::string ascii_lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

}  // namespace fsdp
