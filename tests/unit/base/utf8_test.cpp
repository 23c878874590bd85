#include "lib/base/text/utf8.hpp"

#include <doctest/doctest.h>

#include <string>

TEST_SUITE("base/utf8") {
  TEST_CASE("utf8_character_length: the first and last character of every length") {
    CHECK(fsdp::utf8_character_length(std::string_view("\0", 1)) == 1);
    CHECK(fsdp::utf8_character_length("\x7F") == 1);
    CHECK(fsdp::utf8_character_length("\xC2\x80") == 2);
    CHECK(fsdp::utf8_character_length("\xDF\xBFz") == 2);
    CHECK(fsdp::utf8_character_length("\xE0\xA0\x80") == 3);
    CHECK(fsdp::utf8_character_length("\xED\x9F\xBF") == 3);
    CHECK(fsdp::utf8_character_length("\xEF\xBF\xBF") == 3);
    CHECK(fsdp::utf8_character_length("\xF0\x90\x80\x80") == 4);
    CHECK(fsdp::utf8_character_length("\xF4\x8F\xBF\xBF") == 4);
  }

  TEST_CASE("utf8_character_length: overlong forms, surrogates, too large values and stray bytes are none") {
    for (const char* bytes : {"", "\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2z", "\xE0\x9F\xBF", "\xED\xA0\x80",
                              "\xE2\x82", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
      CAPTURE(bytes);
      CHECK(fsdp::utf8_character_length(bytes) == 0);
    }
  }

  TEST_CASE("utf8_valid_prefix: ends before the first invalid byte") {
    CHECK(fsdp::utf8_valid_prefix("a\xC3\xA9\xFFz") == 3);
    CHECK(fsdp::utf8_valid_prefix("") == 0);
  }

  TEST_CASE("utf8_printable_prefix: holds back an unfinished character only") {
    const std::string text = "a\xF0\x9F\x98\x80";
    CHECK(fsdp::utf8_printable_prefix(text) == 5);
    CHECK(fsdp::utf8_printable_prefix(text.substr(0, 4)) == 1);
    CHECK(fsdp::utf8_printable_prefix(text.substr(0, 3)) == 1);
    CHECK(fsdp::utf8_printable_prefix(text.substr(0, 2)) == 1);
    CHECK(fsdp::utf8_printable_prefix("a\xE2\x82") == 1);
    CHECK(fsdp::utf8_printable_prefix("a\xED\xA0") == 3);  // can only be a surrogate
    CHECK(fsdp::utf8_printable_prefix("a\x80\x80") == 3);
    CHECK(fsdp::utf8_printable_prefix("") == 0);
  }
}
