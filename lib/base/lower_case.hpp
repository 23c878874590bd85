#pragma once
// Names that are compared without regard to case.
#include <string>

namespace fsdp {

/// The text with ASCII's capitals made small, whatever the locale; other bytes stay.
inline std::string ascii_lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

}  // namespace fsdp
