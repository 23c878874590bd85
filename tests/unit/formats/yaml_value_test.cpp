#include "lib/formats/yaml/yaml_value.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "lib/base/types/error.hpp"

using namespace fsdp;

namespace {

using Kind = YamlValue::Kind;

/// The value as text in JSON's manner, by which tests compare: numbers and booleans bare, texts in quotes.
std::string shown(const YamlValue& value) {
  std::string all;
  switch (value.kind) {
    case Kind::null:
      return "null";
    case Kind::text:
      return '"' + value.text + '"';
    case Kind::list:
      for (const auto& item : value.items) all += (all.empty() ? "" : ", ") + shown(item);
      return "[" + all + "]";
    case Kind::map:
      for (const auto& entry : value.entries) all += (all.empty() ? "" : ", ") + entry.key + ": " + shown(entry.value);
      return "{" + all + "}";
    default:
      return value.text;
  }
}
std::string read_shown(const std::string& text) { return shown(read_yaml(text)); }

void expect_error(const std::string& text, const std::string& fact) {
  INFO(text.substr(0, 200));
  INFO(fact);
  std::string what = "no error";
  try {
    (void)read_yaml(text);
  } catch (const FormatError& error) {
    what = error.what();
  }
  INFO(what);
  CHECK(what.find(fact) != std::string::npos);
}

}  // namespace

TEST_SUITE("formats/yaml_value") {
  TEST_CASE("scalars are those of YAML 1.1, as PyYAML reads them") {
    const std::vector<std::pair<std::string, std::string>> cases{{"yes", "true"},
                                                                 {"No", "false"},
                                                                 {"ON", "true"},
                                                                 {"tRue", "\"tRue\""},
                                                                 {"y", "\"y\""},
                                                                 {"~", "null"},
                                                                 {"Null", "null"},
                                                                 {"''", "\"\""},
                                                                 {"'null'", "\"null\""},
                                                                 {"17", "17"},
                                                                 {"+1_000", "1000"},
                                                                 {"010", "8"},
                                                                 {"-0x1F", "-31"},
                                                                 {"0b101", "5"},
                                                                 {"09", "\"09\""},
                                                                 {"1:30", "90"},
                                                                 {"-2:00:01", "-7201"},
                                                                 {"1e-4", "\"1e-4\""},
                                                                 {"1.0e-4", "1.0e-4"},
                                                                 {"1.0e4", "\"1.0e4\""},
                                                                 {".5", ".5"},
                                                                 {"5.", "5."},
                                                                 {"1_0.5", "10.5"},
                                                                 {"-.INF", "-inf"},
                                                                 {".nan", "nan"},
                                                                 {"\"17\"", "\"17\""},
                                                                 {"!!str 17", "\"17\""},
                                                                 {"!!int '7'", "7"},
                                                                 {"!!float 3", "3"},
                                                                 {"! 17", "\"17\""},
                                                                 {"!!null x", "null"},
                                                                 {"!!bool 'no'", "false"},
                                                                 {"2001-12-14", "\"2001-12-14\""},
                                                                 {"'it''s'", "\"it's\""},
                                                                 {"\"a\\tb\\x41\"", "\"a\tbA\""},
                                                                 {"18446744073709551615", "18446744073709551615"},
                                                                 {"", "null"},
                                                                 {"# x\n", "null"}};
    for (const auto& [text, value] : cases) {
      INFO(text);
      CHECK(read_shown(text) == value);
    }
  }

  TEST_CASE("lists, mappings, texts over lines, comments, a byte order mark") {
    CHECK(read_shown("a:\n- 1\n- [2, x]\n-\nb: {c: d, e: }\n") == "{a: [1, [2, \"x\"], null], b: {c: \"d\", e: null}}");
    CHECK(read_shown("\xEF\xBB\xBF# first\n---\na: b # not c\nd: e#f\n...\n") == "{a: \"b\", d: \"e#f\"}");
    CHECK(read_shown("a: |\n  x\n   y\nb: >-\n  x\n  y\nc: x\n  y\r\n") == "{a: \"x\n y\n\", b: \"x y\", c: \"x y\"}");
    const auto root = read_yaml("a: 1\n\nb:\n  - c: 2\n");
    CHECK(root.entries[1].line == 3);
    CHECK(root.entries[1].value.items[0].entries[0].line == 4);
  }

  TEST_CASE("aliases and merge keys") {
    CHECK(read_shown("a: &x [1]\nb: *x\n") == "{a: [1], b: [1]}");
    CHECK(read_shown("a: &x {p: 1, q: 2}\nb:\n  q: 3\n  <<: *x\n") == "{a: {p: 1, q: 2}, b: {q: 3, p: 1}}");
    CHECK(read_shown("- &x {p: 1}\n- &y {p: 2, q: 2}\n- {<<: [*x, *y]}\n") == "[{p: 1}, {p: 2, q: 2}, {p: 1, q: 2}]");
    CHECK(read_shown("'<<': 1") == "{<<: 1}");
    expect_error("a: *x\n", "line 1: *x");
    expect_error("a: &x [*x]\n", "line 1: *x");
    expect_error("a: 1\n<<: 3\n", "line 2: <<");
    expect_error("a: &x 1\nb: &x 2\n", "line 2: &x is there twice");
  }

  TEST_CASE("what is no value here is told with its line") {
    expect_error("a: 1\nb: 2\na: 3\n", "line 3: 'a' is there twice, also on line 1");
    expect_error("a: 1\n---\nb: 2\n", "line 2: another document");
    expect_error("a:\n\t- b\n", "line 2");
    expect_error("a: [1\nb: 2\n", "line 2");
    expect_error("a: 'b\n", "quoted scalar");
    expect_error("a: \"\\q\"\n", "line 1");
    expect_error("[a, b]: c\n", "line 1: a key");
    expect_error("a: !!python/object:os.system x\n", "python/object");
    expect_error("a: !mine x\n", "line 1: the type !mine");
    expect_error("a: !!int x\n", "'x' is no number");
    expect_error("a: !!set {x}\n", "!!set");
    expect_error("a: 99999999999999999999\n", "64 bits");
    expect_error("a: \x01\n", "byte 3");
    expect_error("a: \xFF\n", "byte 3");
    expect_error("%YAML 3.0\n---\na: 1\n", "line 1");
  }

  TEST_CASE("hostile texts end with an error, soon") {
    std::string bomb = "a0: &a0 [x]\n";
    for (int i = 1; i < 30; ++i) {
      const auto before = "*a" + std::to_string(i - 1);
      bomb += fmt::format("a{}: &a{} [{}, {}, {}, {}]\n", i, i, before, before, before, before);
    }
    expect_error(bomb, "16 MiB");
    std::string copies = "a: &a " + std::string(500'000, 'x') + "\nb: [";
    for (int i = 0; i < 100'000; ++i) copies += "*a,";
    expect_error(copies + "]\n", "16 MiB");
    expect_error(std::string(100'000, '['), "levels");
    std::string deep;
    for (int i = 0; i < 200; ++i) deep += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
    expect_error(deep, "levels");
    expect_error(std::string(2 << 20, 'x'), "1 MiB");
    CHECK(read_shown(std::string(100'000, '1')).size() == 100'002);  // too long for a number: a text
  }
}
