#include "lib/templates/jinja/python_regex.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"
#include "lib/templates/jinja/jinja.hpp"

namespace {

using fsdp::PythonRegex;
using Matches = std::vector<std::vector<std::string>>;

std::string strictly(const std::string& source, const nlohmann::ordered_json& variables) {
  return fsdp::JinjaTemplate(source, fsdp::JinjaEnvironment::strict).render(variables, std::tm{}).text;
}

TEST_SUITE("templates/python_regex") {
  struct Known {
    std::string pattern, text;
    Matches found;
    std::string replaced;  ///< by <>
  };

  TEST_CASE("findall() and sub() of Python 3.12") {
    const std::vector<Known> known{
        {R"((\d+)-(x)?)", "12-x 7- a", {{"12", "x"}, {"7", ""}}, "<> <> a"},
        {"a*", "baac", {{""}, {"aa"}, {""}, {""}}, "<>b<><>c<>"},
        {"(?s).*#### ", "x\n#### 5", {{"x\n#### "}}, "<>5"},
        {R"(\s+$)", "a \x1c\n", {{" \x1c\n"}}, "a<>"},
        {"(-?[$0-9.,]{2,})|(-?[0-9]+)", "costs $1,000.50 and 7", {{"$1,000.50", ""}, {"", "7"}}, "costs <> and <>"},
        {R"([\s\]])", "a]\x1f b", {{"]"}, {"\x1f"}, {" "}}, "a<><><>b"},
        {R"((?P<n>\w)\Z)", "äb", {{"b"}}, "ä<>"},
        {R"(\.$)", "5.\n", {{"."}}, "5<>\n"},
    };
    for (const auto& one : known) {
      CAPTURE(one.pattern);
      const PythonRegex pattern(one.pattern, "pattern");
      CHECK(pattern.find_all(one.text) == one.found);
      CHECK(pattern.replace(one.text, "<>") == one.replaced);
    }
    CHECK(PythonRegex(R"((?P<a>\w)(\d))", "pattern").replace("x1 y2 z3", R"(\2-\g<a>\g<1>\n)", 2) ==
          "1-xx\n 2-yy\n z3");
  }

  TEST_CASE("what means something else, or takes too long, is refused") {
    for (const auto* pattern : {"(", "[", "a{2", R"(\K)", R"(\h)", R"(\Qa\E)", "(*UTF)", "(?R)", "(?<n>a)", R"(\p{L})",
                                R"(\z)", R"(\x4)", "(?a)x", "*"}) {
      CAPTURE(pattern);
      if (std::string_view(pattern) == "a{2") {
        CHECK(PythonRegex(pattern, "pattern").find_all("a{2") == Matches{{"a{2"}});
      } else {
        CHECK_THROWS_AS(PythonRegex(pattern, "pattern"), fsdp::FormatError);
      }
    }
    CHECK_THROWS_AS(PythonRegex("(a)", "pattern").replace("a", R"(\2)"), fsdp::FormatError);
    CHECK_THROWS_AS(PythonRegex("a", "pattern").replace("a", R"(\q)"), fsdp::FormatError);
    CHECK_THROWS_WITH_AS(PythonRegex("(a+)+$", "pattern").find_all(std::string(64, 'a') + "c"),
                         doctest::Contains("pattern: the search failed"), fsdp::FormatError);
    CHECK_THROWS_AS(PythonRegex("a", "pattern").find_all("\xff"), fsdp::FormatError);
  }

  TEST_CASE("templates of benchmarks keep white space and refuse what is undefined") {
    CHECK(strictly("a\n  {% if true %}\n b{% endif %}\n", {}) == "a\n  \n b\n");
    CHECK(strictly("{{ a|regex_replace('[aeiou]', '-', 1) }}", {{"a", "banana"}}) == "b-nana");
    CHECK(strictly("{{ x is defined }}{{ x|default('y') }}", {}) == "Falsey");
    for (const auto* source :
         {"{{ x }}", "{% if x %}{% endif %}", "{% for y in x %}{% endfor %}", "{{ x == 1 }}", "{{ a.b }}"}) {
      CAPTURE(source);
      CHECK_THROWS_AS(strictly(source, {{"a", nlohmann::ordered_json::object()}}), fsdp::FormatError);
    }
    CHECK_THROWS_AS(fsdp::JinjaTemplate("{{ a|regex_replace('a', 'b') }}"), fsdp::FormatError);
  }
}

}  // namespace
