#include "lib/base/text/text_format.hpp"

#include <doctest/doctest.h>

#include <string>

TEST_SUITE("base/text_format") {
  TEST_CASE("printable: escapes control characters and invalid UTF-8, leaves other text unchanged") {
    for (const std::string same : {"", "plain text, 100 %", "two\nlines\tand a tab", "Größe 日本 😀"}) {
      CHECK(fsdp::printable(same) == same);
    }
    CHECK(fsdp::printable("\x1b]0;title\x07") == "\\x1b]0;title\\x07");
    CHECK(fsdp::printable("a\rb\x7f\b") == "a\\x0db\\x7f\\x08");
    CHECK(fsdp::printable(std::string("\0x", 2)) == "\\x00x");
    CHECK(fsdp::printable("\xc2\x9b"
                          "31m") == "\\xc2\\x9b31m");  // CSI as one character
    CHECK(fsdp::printable("\x9b"
                          "31m") == "\\x9b31m");
    CHECK(fsdp::printable("caf\xe9") == "caf\\xe9");              // Latin-1
    CHECK(fsdp::printable("\xe2\x82") == "\\xe2\\x82");           // truncated
    CHECK(fsdp::printable("\xc0\x9b\xff") == "\\xc0\\x9b\\xff");  // overlong
  }

  TEST_CASE("format_count_of: singular for one, otherwise plural with thousands separators") {
    CHECK(fsdp::format_count_of(1, "text") == "1 text");
    CHECK(fsdp::format_count_of(0, "text") == "0 texts");
    CHECK(fsdp::format_count_of(2, "row") == "2 rows");
    CHECK(fsdp::format_count_of(1234567, "step") == "1,234,567 steps");
    CHECK(fsdp::format_count_of(1, "repository", "repositories") == "1 repository");
    CHECK(fsdp::format_count_of(3, "repository", "repositories") == "3 repositories");
  }
}
