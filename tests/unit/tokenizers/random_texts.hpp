#pragma once
// Random texts from all of Unicode, for what must hold for any text.
#include <cstdint>
#include <random>
#include <string>

namespace fsdp::test {

inline void append_utf8(std::string& text, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6)), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12)), put(0x80 | ((code >> 6) & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18)), put(0x80 | ((code >> 12) & 0x3F)), put(0x80 | ((code >> 6) & 0x3F)),
        put(0x80 | (code & 0x3F));
  }
}

/// At most `length` characters from all of Unicode but U+2581, spaces and small ones more often.
inline std::string random_text(std::mt19937& random, int length) {
  std::string text;
  for (int i = 0; i < length; ++i) {
    const std::uint32_t limits[] = {0x80, 0x250, 0x3000, 0xD800, 0x110000};
    const auto code = static_cast<std::uint32_t>(random()) % limits[random() % 5];
    if (random() % 8 == 0) text += ' ';
    if ((code < 0xD800 || code > 0xDFFF) && code != 0x2581) append_utf8(text, code);
  }
  return text;
}

inline std::string random_bytes_text(std::mt19937& random, int length) {
  std::string bytes;
  for (int i = 0; i < length; ++i) bytes += static_cast<char>(random() % 4 == 0 ? ' ' : random() % 256);
  return bytes;
}

}  // namespace fsdp::test
