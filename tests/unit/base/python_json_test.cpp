#include "lib/base/text/python_json.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/base/types/error.hpp"

namespace {

using Json = nlohmann::ordered_json;

Json parsed(const std::string& text) { return fsdp::PythonJson(text).parse(); }
std::string digits(const Json& value) {
  return value.is_binary() ? std::string(value.get_binary().begin(), value.get_binary().end()) : "no digits";
}

}  // namespace

TEST_SUITE("base/python_json") {
  TEST_CASE("JSON is what it was, with members in the order of the text") {
    const std::string text = R"({"b": [1, -2, 18446744073709551615, 0.5, 1e308, -1e308, "1e308"], "a": {"x": null}})";
    const fsdp::PythonJson json(text);
    CHECK(json.is_plain());
    CHECK(json.parse() == Json::parse(text));
    CHECK(json.parse().dump() == Json::parse(text).dump());
  }

  TEST_CASE("numbers that are not finite") {
    const auto list = parsed("[NaN, Infinity, -Infinity, 1e999, -1E+999, 1e308, 1e-999, 10e307]");
    CHECK(std::isnan(list[0].get<double>()));
    for (const std::size_t i : {1U, 3U}) CHECK(list[i].get<double>() == INFINITY);
    for (const std::size_t i : {2U, 4U}) CHECK(list[i].get<double>() == -INFINITY);
    CHECK(list[5] == 1e308);
    CHECK(list[6] == 0.0);
    CHECK(list[7] == 1e308);
    CHECK_FALSE(fsdp::PythonJson("[NaN]").is_plain());
    CHECK_FALSE(fsdp::PythonJson("1e999").is_plain());
  }

  TEST_CASE("whole numbers beyond 64 bits keep their digits") {
    const std::string longest(400, '7');
    const auto list = parsed("[18446744073709551616, {\"x\": -9223372036854775809}, " + longest +
                             ", -9223372036854775808, 18446744073709551616.0]");
    CHECK(digits(list[0]) == "18446744073709551616");
    CHECK(digits(list[1]["x"]) == "-9223372036854775809");
    CHECK(digits(list[2]) == longest);
    CHECK(list[3].is_number_integer());
    CHECK(list[4] == 18446744073709551616.0);
  }

  TEST_CASE("what Python does not read either is no JSON") {
    for (const auto* wrong : {"[-NaN]", "[NaNa]", "[01e999]", "[1.e999]", "[+1e999]", "[Inf]", "[--Infinity]",
                              "[00018446744073709551616]", "[1NaN]", "[NaN"}) {
      CAPTURE(wrong);
      CHECK_THROWS_AS(parsed(wrong), nlohmann::json::exception);
    }
    CHECK_THROWS_WITH_AS(parsed(R"({"a": NaN, "a": 1})"), doctest::Contains("occurs twice"), fsdp::FormatError);
  }

  TEST_CASE("half of a surrogate pair is found, beside any character") {
    const std::string text =
        "[\"\\ud83d\", {\"\\udc00\": 1}, \"\\ud83d\\ude00 \xef\xb7\x90 \\uFDD1\", {\"k\": [\"\\ud83d\"]}]";
    const fsdp::PythonJson json(text);
    const auto list = json.parse();
    CHECK_FALSE(json.is_plain());
    for (const std::size_t i : {0U, 1U, 3U}) CHECK(json.holds_half(list[i]));
    CHECK_FALSE(json.holds_half(list[2]));
    CHECK(list[2] == "\xf0\x9f\x98\x80 \xef\xb7\x90 \xef\xb7\x91");
    CHECK_FALSE(fsdp::PythonJson("[]").holds_half(Json("")));
  }
}
