#include "lib/base/text_format.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fsdp {

std::string format_bytes(double bytes) {
  if (bytes >= 1073741824.0) return fmt::format("{:.2f} GiB", bytes / 1073741824.0);
  if (bytes >= 1048576.0) return fmt::format("{:.0f} MiB", bytes / 1048576.0);
  return fmt::format("{:.0f} KiB", bytes / 1024.0);
}

std::string format_count(std::int64_t n) {
  auto digits = std::to_string(n);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (n < 0 ? 1 : 0); at -= 3) {
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

}  // namespace fsdp
