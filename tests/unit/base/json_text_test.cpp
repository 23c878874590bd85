#include "lib/base/text/json_text.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"

TEST_SUITE("base/json_text") {
  TEST_CASE("parse_json: accepts up to 64 levels of nesting, whatever strings contain") {
    const std::string deep = std::string(64, '[') + std::string(64, ']');
    CHECK(fsdp::json_text(fsdp::parse_json(deep, "f")) == deep);
    const std::string brackets = "{\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '{') + "\\\\\":1}";
    CHECK(fsdp::json_text(fsdp::parse_json(brackets, "f")) == brackets);
  }

  TEST_CASE("parse_json: invalid JSON gives the parser's error, or a discarded value") {
    for (const char* text : {"", "\"", "\"\\", "]]]]", "no JSON", "[1, 2", "[1e999]"}) {
      CAPTURE(text);
      CHECK_THROWS_AS(fsdp::parse_json(text, "f"), nlohmann::json::exception);
      CHECK(fsdp::parse_json_or_discard(text, "f").is_discarded());
    }
  }

  TEST_CASE("parse_json: refuses text that would take many times its size in memory, naming file and byte") {
    const std::string deep(60'000'000, '[');
    std::string many = "[0";
    for (int i = 0; i < 4'000'000; ++i) many += ",0";
    many += "]";
    for (const auto parse : {fsdp::parse_json, fsdp::parse_json_or_discard}) {
      CHECK_THROWS_WITH_AS(parse(deep, "config.json"),
                           doctest::Contains("config.json: at byte 64: is nested deeper than 64 values"),
                           fsdp::FormatError);
      CHECK_THROWS_WITH_AS(parse(many, "tokenizer.json"), doctest::Contains("holds more than 4000000"),
                           fsdp::FormatError);
    }
  }

  TEST_CASE("parse_json: a duplicate name in an object is refused, at any depth and in any spelling") {
    for (const char* text : {R"({"a":1,"a":1})", R"([{"b":{"a":1,"x":[{"a":2}],"a":2}}])", R"({"\u0061":1, "a" : 2})",
                             R"({"a":{"a":1},"b":[],"a":3})", R"({"":1,"":2})"}) {
      CAPTURE(text);
      for (const auto parse : {fsdp::parse_json, fsdp::parse_json_or_discard})
        CHECK_THROWS_WITH_AS(parse(text, "index.json"), doctest::Contains("occurs twice"), fsdp::FormatError);
    }
    CHECK_THROWS_WITH_AS(fsdp::parse_json(R"({"one": 1, "two": 2, "one": 3})", "index.json"),
                         doctest::Contains("index.json: at byte 22: the name \"one\""), fsdp::FormatError);
    // Accepted: a name that occurs in several objects or as a value. Invalid JSON is discarded.
    for (const char* text :
         {R"({"a":{"a":"a","b":"a"},"b":["a","a",{"a":1},{"a":1}]})", R"({"\\u0061":1,"a":2,"A":3})"}) {
      CAPTURE(text);
      CHECK(!fsdp::parse_json(text, "f").is_discarded());
    }
    CHECK(fsdp::parse_json_or_discard(R"({"a":1,"a":2} and more)", "f").is_discarded());
  }

  TEST_CASE("printable_json: invalid UTF-8 is replaced, not an error") {
    const nlohmann::json value{{"name", "f\xfcr"}};
    CHECK_THROWS_AS(fsdp::json_text(value), nlohmann::json::type_error);
    CHECK(fsdp::printable_json(value) == "{\"name\":\"f\xef\xbf\xbdr\"}");
  }

  TEST_CASE("json_text: on one line or indented") {
    const nlohmann::json value{{"a", {1, 2.5}}, {"b", nullptr}};
    CHECK(fsdp::json_text(value) == R"({"a":[1,2.5],"b":null})");
    CHECK(fsdp::json_text(value, 1) == "{\n \"a\": [\n  1,\n  2.5\n ],\n \"b\": null\n}");
  }
}
