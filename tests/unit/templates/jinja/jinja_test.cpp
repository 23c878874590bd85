#include "lib/templates/jinja/jinja.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"

namespace {

using Json = nlohmann::ordered_json;

const std::string kTemplates = FSDP_FIXTURE_DIR "/jinja/";

Json read(const std::string& name) { return Json::parse(fsdp::read_text_file(kTemplates + name)); }

/// 2026-03-09T07:05:03, a Monday, which the fixtures' clock showed.
std::tm fixture_time() {
  std::tm time{};
  time.tm_year = 126;
  time.tm_mon = 2;
  time.tm_mday = 9;
  time.tm_hour = 7;
  time.tm_min = 5;
  time.tm_sec = 3;
  time.tm_wday = 1;
  time.tm_yday = 67;
  return time;
}

std::string render(const std::string& source, const Json& variables = Json::object(),
                   const fsdp::JinjaLimits& limits = {}) {
  return fsdp::JinjaTemplate(source).render(variables, fixture_time(), limits).text;
}

/// The words of the error that rendering ends with.
std::string problem_of(const std::string& source, const Json& variables = Json::object(),
                       const fsdp::JinjaLimits& limits = {}) {
  try {
    return "rendered: " + render(source, variables, limits);
  } catch (const fsdp::FormatError& error) {
    return error.what();
  }
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_SUITE("jinja/jinja") {
  TEST_CASE("every expression, filter, test and statement as Jinja renders it") {
    const auto truth = read("cases.json");
    for (const auto& one : truth["cases"]) {
      CAPTURE(one["template"].get<std::string>());
      CHECK(render(one["template"], truth["variables"]) == one["result"].get<std::string>());
    }
    CHECK(truth["cases"].size() == 61);
  }

  TEST_CASE(
      "what Python does at the edges: one attribute with a comma, undefined values in %, sizes, methods of numbers") {
    const auto truth = read("python_edges.json");
    CHECK(truth["cases"].size() == 22);
    for (const auto& one : truth["cases"]) {
      CAPTURE(one["template"].get<std::string>());
      CHECK(render(one["template"]) == one["result"].get<std::string>());
    }
    CHECK(has(problem_of("{{ [{'a': 1}, {'a': 0}] | max(attribute='a,b') }}"), "'a,b'"));
    CHECK(has(problem_of("{{ '%d' % missing }}"), "formatted as"));
    CHECK(has(problem_of("{{ (1.5).bit_length() }}"), "'bit_length' is nothing that a value of type float has"));
  }

  TEST_CASE("cycler, joiner, and filters for other texts than those of models") {
    const auto truth = read("more_filters.json");
    CHECK(truth["cases"].size() == 11);
    for (const auto& one : truth["cases"]) {
      CAPTURE(one["template"].get<std::string>());
      CHECK(render(one["template"]) == one["result"].get<std::string>());
    }
    CHECK(has(problem_of("{{ [1, 2] | random }}"), "line 1: filter 'random' takes another element each time"));
    CHECK(has(problem_of("{{ lipsum() }}"), "lipsum() writes another text each time"));
    CHECK(has(problem_of("{{ '&eacute;' | striptags }}"), "HTML entity that is not supported: '&eacute;'"));
    CHECK(has(problem_of("{{ cycler() }}"), "cycler() takes values"));
    CHECK(has(problem_of("{{ 'a'.translate('b') }}"), "translate() needs a dictionary"));
    CHECK(has(problem_of("{{ 'a\t'.expandtabs(99999999999) }}"), "it makes more than"));
  }

  TEST_CASE(
      "upper and lower case as Python has it: several letters for one, the final sigma, letters that are numbers") {
    const auto truth = read("case.json");
    const auto& results = truth["results"];
    const auto text = render(truth["template"], {{"texts", truth["texts"]}});
    std::string_view rest = text;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto line = rest.substr(0, rest.find('\n'));
      CAPTURE(truth["texts"][i].dump());
      CHECK(Json::parse(line) == results[i]);
      rest.remove_prefix(line.size() + 1);
    }
    CHECK(results.size() > 400);
  }

  TEST_CASE("what Jinja refuses is refused, with the words of raise_exception") {
    const auto truth = read("errors.json");
    for (const auto& one : truth["errors"]) {
      CAPTURE(one["template"].get<std::string>());
      const auto problem = problem_of(one["template"], truth["variables"]);
      CHECK(has(problem, "line 1: "));
      CHECK(!has(problem, "rendered: "));
      if (one["error"] == "TemplateError") CHECK(problem.ends_with(one["message"].get<std::string>()));
    }
    CHECK(truth["errors"].size() == 28);
  }

  TEST_CASE("an error names the line") {
    CHECK(has(problem_of("a\nb\n{{ x.y }}"), "line 3: 'x' is undefined"));
    CHECK(has(problem_of("a\n{% if %}"), "line 2: "));
    CHECK(has(problem_of("{{ 1 | nosuch }}"), "there is no filter 'nosuch'"));
    CHECK(has(problem_of("{% include 'x' %}"), "{% include %} is not supported"));
    CHECK(has(problem_of("{% for x in [1] %}\n{% endfor %}{% endfor %}"), "line 2: {% endfor %}"));
    CHECK(has(problem_of("\xff"), "not UTF-8"));
  }

  TEST_CASE("limits: steps, bytes, depth, values in values") {
    const std::string loops = "{% for a in range(1000) %}{% for b in range(1000) %}x{% endfor %}{% endfor %}";
    CHECK(has(problem_of(loops, {}, {.steps = 100'000}), "steps"));
    for (const auto* source :
         {"{{ 'x' * 1000000000000 }}", "{{ [1] * 1000000000000 }}", "{{ 'x'.center(10 ** 18) }}",
          "{{ '%1000000000d' % 1 }}", "{{ '{:>1000000000}'.format(1) }}", "{{ 'a'.zfill(10 ** 12) }}",
          "{{ [1] | batch(10 ** 12, 0) | list }}", "{{ [1] | slice(10 ** 12) | list }}", "{{ 'a' | indent(10 ** 12) }}",
          "{{ [0, 2] | batch(69223372036854775807, 0) | list }}", "{{ [1] | slice(2 ** 63 - 1) | list }}",
          "{{ [[1]] | tojson(indent=10 ** 12) }}", "{{ 'x'.center(2 ** 63 - 1, '\U0001f600') }}",
          "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
          "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor "
          "%}"}) {
      CAPTURE(source);
      CHECK(has(problem_of(source), "bytes"));
    }
    CHECK(has(problem_of("{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}"), "too deeply"));
    CHECK(has(problem_of("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"), "too deeply"));
    const std::string grow =
        "{% set ns = namespace(x=[]) %}{% for i in range(300) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    CHECK(has(problem_of(grow + "{{ ns.x }}"), "levels"));
    const std::string wide =
        "{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    CHECK(has(problem_of(wide + "{{ ns.x | tojson }}"), "steps"));
    CHECK(has(problem_of("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"), "levels"));
    CHECK(has(problem_of("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"), "too deeply"));
    std::string chain = "{{ 1";
    for (int i = 0; i < 5000; ++i) chain += " + 1";
    CHECK(has(problem_of(chain + " }}"), "too deeply"));
    CHECK(has(problem_of("{{ 2 ** 127 * 2 }}"), "128 bits"));
    CHECK(has(problem_of("{{ 9 ** 999999999999 }}"), "128 bits"));
  }

  TEST_CASE("limits: steps count what calls look at, so that no short template computes for hours") {
    const std::string texts = "{% set t = 'a' * 100000 %}{% set w = 'a' * 50000 ~ 'b' %}{% set d = {t: 1} %}";
    for (const auto* expression :
         {"t.isalpha()", "t.islower()", "t.startswith('b')", "t.find('b')", "t.count('b')", "t[:1]", "t is lower",
          "t.find(w)", "t.rfind(w)", "t.count(w)", "w in t", "t | replace(w, '')", "t.split(w)", "t.rsplit(w)",
          "t.partition(w)", "t.strip(w)", "d[t]", "d.get(t)", "'b'.startswith(t)"}) {
      CAPTURE(expression);
      CHECK(has(problem_of(texts + "{% for i in range(1000) %}{% if " + expression + " %}{% endif %}{% endfor %}", {},
                           {.steps = 200'000}),
                "steps"));
    }
    CHECK(has(problem_of("{% set x = ([1] * 100000) | map('string') %}{% for i in range(1000) %}{{ x | first }}"
                         "{% endfor %}",
                         {}, {.steps = 1'000'000}),
              "steps"));
    std::string many;
    for (int i = 0; i < 5000; ++i) many += "{% set v" + std::to_string(i) + " = 1 %}";
    CHECK(has(problem_of(many + "{% for i in range(1000) %}{{ v4999 }}{% endfor %}", {}, {.steps = 900'000}), "steps"));
  }

  TEST_CASE("a result of a filter can be iterated over once, as in Python") {
    const Json messages = {{"ms", {{{"role", "a"}}, {{"role", "b"}}}}};
    CHECK(render("{% set x = ms | map(attribute='role') %}{{ x | join }}{{ x | join }}", messages) == "ab");
    CHECK(has(problem_of("{{ ms | map(attribute='role') | length }}", messages), "has no length"));
  }

  TEST_CASE("numbers beyond a double") {
    CHECK(render("{{ 1e999 }} {{ -1e999 }} {{ 1e-999 }} {{ '1e999' | float }} {{ '-1e-999' | float }}") ==
          "inf -inf 0.0 inf -0.0");
  }

  TEST_CASE("an else of a loop: when no pass comes to its end") {
    CHECK(render("{% for x in [1, 2] %}{% continue %}{% else %}e{% endfor %}") == "e");
    CHECK(render("{% for x in [1, 2] %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% else %}e{% endfor %}") == "12");
  }

  TEST_CASE("a loop's filter sees what the loop has done") {
    CHECK(render("{% set ns = namespace(stop=false) %}{% for x in range(9) if not ns.stop %}{{ x }}"
                 "{% if x == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}") == "012");
  }

  TEST_CASE("a name that a scope assigns before it reads it is not the variable, in inner scopes neither") {
    const Json given = {{"a", "A"}, {"xs", {1, 2}}};
    CHECK(render("{% for x in xs %}{{ a }}{% endfor %}{% set a = 1 %}{{ a }}", given) == "1");
    CHECK(render("{% for x in xs %}{{ a }}{% endfor %}{% if xs %}{% set a = 1 %}{% endif %}{{ a }}", given) == "AA1");
    CHECK(render("{{ a }}{% for x in xs %}{{ a }}{% endfor %}{% set a = 1 %}", given) == "AAA");
    CHECK(render("{% set a %}[{{ a }}]{% endset %}{{ a }}", given) == "[]");
    CHECK(render("{% for x in xs %}{% set a %}[{{ a }}]{% endset %}{{ a }}{% endfor %}{{ a }}", given) == "[A][A]A");
    CHECK(render("{% macro m() %}{{ a }}{% endmacro %}{{ m() }}{% set a = 1 %}{{ m() }}", given) == "1");
    CHECK(render("{% macro m(a=a) %}<{{ a }}>{% endmacro %}{{ m() }}", given) == "<>");
    CHECK(render("{% macro m(b=a, a=2) %}<{{ b }}{{ a }}>{% endmacro %}{{ m() }}{{ m(a=3) }}", given) == "<2><33>");
    CHECK(render("{% with %}{{ a }}{% endwith %}{% filter upper %}{{ a }}{% endfilter %}{% set a = 1 %}", given) == "");
  }

  TEST_CASE("values that Python refuses are refused") {
    for (const auto* source : {"{% filter length %}{% endfilter %}", "{{ dict(namespace(a=1)) }}", "{{ dict(b) }}",
                               "{{ (1, 2).copy() }}", "{{ namespace(a=1) | dictsort }}", "{{ range(2).copy() }}",
                               "{{ 'a' % namespace(a=1) }}", "{{ 'a' % {}.keys() }}"}) {
      CAPTURE(source);
      CHECK_FALSE(problem_of(source).empty());
    }
  }

  TEST_CASE("generation: ranges in bytes, and no place within a macro or a captured text") {
    const fsdp::JinjaTemplate marked(
        "é{% generation %}ü{% set a = 1 %}{% endgeneration %}{{ a is defined }}{% generation %}{% endgeneration %}");
    const auto text = marked.render(Json::object(), fixture_time());
    CHECK(marked.has_generation());
    CHECK(text.text == "éüFalse");
    REQUIRE(text.marked.size() == 2);
    CHECK((text.marked[0].begin == 2 && text.marked[0].end == 4));
    CHECK((text.marked[1].begin == 9 && text.marked[1].end == 9));
    CHECK(has(problem_of("{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}"), "generation"));
    CHECK(has(problem_of("{% set x %}{% generation %}x{% endgeneration %}{% endset %}"), "generation"));
  }

  TEST_CASE("strftime_now: directives of one letter, flags, and no others") {
    CHECK(render("{{ strftime_now('%-d %e|%Q%') }}") == "9  9|%Q%");
    CHECK(render("{{ strftime_now('%100000d') }}") == "%100000d");
  }
}
