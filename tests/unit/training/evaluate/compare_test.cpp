#include "lib/training/evaluate/statistics.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"

using fsdp::Metric;

namespace {

Metric metric(const char* name, bool higher_is_better, std::vector<double> values) {
  return {name, higher_is_better, fsdp::ratio(values, std::vector<double>(values.size(), 1.0))};
}

bool passes(const char* gate, const Metric& a, const Metric& b) {
  return fsdp::compare({a}, {b}, {fsdp::parse_gate(gate)}).passed();
}

}  // namespace

TEST_SUITE("eval/compare") {
  TEST_CASE("gates: an absolute and a relative limit on what is worse, up to and with the limit") {
    const auto a = metric("loss", false, {2, 2}), worse = metric("loss", false, {2.5, 2.5});

    CHECK(passes("loss:0.5", a, worse));
    CHECK_FALSE(passes("loss:0.4999", a, worse));
    CHECK(passes("loss:25%", a, worse));
    CHECK_FALSE(passes("loss:24.9%", a, worse));
    CHECK(passes("loss:0", worse, a));
    CHECK(passes("loss:0", a, a));
    CHECK(passes("loss:-0.5", worse, a));
    CHECK_FALSE(passes("loss:-0.6", worse, a));
    CHECK_FALSE(passes("loss:-1%", a, a));
  }

  TEST_CASE("gates: of an accuracy less is worse") {
    const auto a = metric("chess_accuracy", true, {0.5, 0.5}), b = metric("chess_accuracy", true, {0.375, 0.375});

    CHECK(passes("chess_accuracy:0.125", a, b));
    CHECK_FALSE(passes("chess_accuracy:0.12", a, b));
    CHECK(passes("chess_accuracy:25%", a, b));
    CHECK(passes("chess_accuracy:0", b, a));
  }

  TEST_CASE("gates: NaN, infinity against infinity and a figure that is not there never pass") {
    const auto good = metric("loss", false, {2, 2});
    const auto nan = metric("loss", false, {NAN, 2});
    const auto inf = metric("loss", false, {INFINITY, 2});

    CHECK_FALSE(passes("loss:1000", good, nan));
    CHECK_FALSE(passes("loss:1000", nan, good));
    CHECK_FALSE(passes("loss:1000%", nan, good));
    CHECK_FALSE(passes("loss:1000", inf, inf));
    CHECK_FALSE(passes("chess_legal:1", good, good));
    const auto json = fsdp::comparison_to_json(fsdp::compare({good}, {nan}, {fsdp::parse_gate("loss:1")}));
    CHECK(json.dump().find("\"worsening\":null") != std::string::npos);
    CHECK(json["passed"] == false);
  }

  TEST_CASE("compare: difference and its paired standard error") {
    const auto a = metric("loss", false, {1, 2, 6}), b = metric("loss", false, {2, 2, 8});
    const auto result = fsdp::compare({a, metric("perplexity", false, {1, 1, 1})}, {b}, {});

    REQUIRE(result.metrics.size() == 1);
    CHECK(result.passed());
    CHECK(result.metrics[0].difference == doctest::Approx(1));
    CHECK(result.metrics[0].standard_error == doctest::Approx(std::sqrt(1.0 / 3)));  // of 1, 0, 2
  }

  TEST_CASE("parse_gate: what it cannot read it refuses, naming the metrics") {
    const auto gate = fsdp::parse_gate("bits_per_byte:1.5%");
    CHECK(gate.metric == "bits_per_byte");
    CHECK(gate.limit == doctest::Approx(0.015));
    CHECK(gate.relative);
    for (const char* text :
         {"", "loss", "loss:", "loss:x", "loss:1x", "loss:nan", "loss:inf", "loss:%", "lose:1", "loss:1%%", ":1"}) {
      CAPTURE(text);
      CHECK_THROWS_WITH_AS(fsdp::parse_gate(text), doctest::Contains("chess_accuracy"), fsdp::RequestError);
    }
  }
}
