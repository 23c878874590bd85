#include "lib/base/bounded_json.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"

TEST_SUITE("base/bounded_json") {
  TEST_CASE("bounded_json: passes what is no deeper than 64 levels, whatever its strings hold") {
    const std::string deep = std::string(64, '[') + std::string(64, ']');
    CHECK(fsdp::bounded_json(deep, "f") == deep);
    const std::string brackets = "{\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '{') + "\\\\\": 1}";
    CHECK(fsdp::bounded_json(brackets, "f") == brackets);
    for (const char* text : {"", "\"", "\"\\", "]]]]", "no JSON", "[1, 2"})
      CHECK(fsdp::bounded_json(text, "f") == text);
  }

  TEST_CASE("bounded_json: refuses what would take many times its size, naming file and byte") {
    CHECK_THROWS_WITH_AS(fsdp::bounded_json(std::string(60'000'000, '['), "config.json"),
                         doctest::Contains("config.json: at byte 64: is nested deeper than 64 values"),
                         fsdp::FormatError);
    std::string many = "[0";
    for (int i = 0; i < 4'000'000; ++i) many += ",0";
    CHECK_THROWS_WITH_AS(fsdp::bounded_json(many + "]", "tokenizer.json"), doctest::Contains("holds more than 4000000"),
                         fsdp::FormatError);
  }
}
