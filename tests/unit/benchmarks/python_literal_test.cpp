#include "lib/benchmarks/tasks/python_literal.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace {

using fsdp::python_literal;
using Json = nlohmann::ordered_json;

TEST_SUITE("benchmarks/python_literal") {
  TEST_CASE("lists as repr() writes them") {
    const std::vector<std::pair<std::string, Json>> known{
        {"['a', \"it's\", 'a\\'b\"', 'x\\n\\t\\\\']", {"a", "it's", "a'b\"", "x\n\t\\"}},
        {"[1, -2, 0.5, 1e-3, None, True]", {1, -2, 0.5, 0.001, nullptr, true}},
        {"[]", Json::array()},
        {" [ 'a' , ] ", {"a"}},
        {"('a',)", {"a"}},
        {"('a')", "a"},
        {"'a' 'b'", "ab"},
        {"'\\xe4\\u20ac\\U0001f600'", "ä€😀"},
        {"[['a'], [0]]", {{"a"}, {0}}},
        {"7", 7},
    };
    for (const auto& [text, value] : known) {
      CAPTURE(text);
      const auto read = python_literal(text);
      REQUIRE(read);
      CHECK(*read == value);
    }
  }

  TEST_CASE("other texts are none") {
    for (const auto* text : {"", "[", "['a'", "['a' 1]", "[a]", "'a\nb'", "'\\q'", "'\\x4'", "07", "1 2", "[1,,2]",
                             "{'a': 1}", "'\\ud83d'", "-", "1e"}) {
      CAPTURE(text);
      CHECK(!python_literal(text));
    }
    CHECK(!python_literal(std::string(10000, '[')));
  }
}

}  // namespace
