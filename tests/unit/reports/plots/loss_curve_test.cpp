#include "lib/reports/plots/loss_curve.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

fsdp::LossCurve run_of(int steps) {
  fsdp::LossCurve curve{
      .title = "minGPT <4 x 256> & more", .subtitle = "", .step = {}, .train_loss = {}, .validation = {}};
  for (int i = 1; i <= steps; ++i) {
    curve.step.push_back(i);
    curve.train_loss.push_back(4 + 6 * std::exp(-i / 30.0) + 0.2 * std::sin(i * 1.7));
  }
  return curve;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_SUITE("plot/loss_curve") {
  TEST_CASE("loss_curve_svg: title, axes, both lines, validation points with values") {
    auto curve = run_of(100);
    curve.validation = {{"", {50, 100}, {5.5, 4.25}}};
    const auto svg = fsdp::loss_curve_svg(curve);

    CHECK(svg.starts_with("<svg "));
    CHECK(svg.ends_with("</svg>\n"));
    CHECK(svg.find("minGPT &lt;4 x 256&gt; &amp; more") != svg.npos);
    CHECK(svg.find(">4.250</text>") != svg.npos);
    CHECK(svg.find(">5.500</text>") != svg.npos);
    CHECK(svg.find("best 4.250 at step 100") != svg.npos);
    CHECK(count(svg, "stroke=\"#1f62b4\"") == 2);  // the smoothed line and its legend
    CHECK(count(svg, "stroke=\"#b0cbea\"") == 1);  // the raw line
    CHECK(count(svg, "<circle") == 3);             // two points and the legend's
  }

  TEST_CASE("loss_curve_svg: several validation sets, each with its colour and its place in the legend") {
    auto curve = run_of(10);
    curve.validation = {{"easy", {5, 10}, {4.5, 4.75}}, {"hard", {5, 10}, {6.5, 6.25}}};
    const auto svg = fsdp::loss_curve_svg(curve);

    CHECK(svg.find("easy 4.750, best 4.500") != svg.npos);
    CHECK(svg.find("hard 6.250, best 6.250") != svg.npos);
    CHECK(count(svg, "stroke=\"#d15418\"") == 2);  // a line and its legend
    CHECK(count(svg, "stroke=\"#228833\"") == 2);
    CHECK(count(svg, "<circle") == 6);

    for (int i = 0; i < 20; ++i) curve.validation.push_back({"set-" + std::to_string(i), {5}, {5.5}});
    const auto crowded = fsdp::loss_curve_svg(curve);
    CHECK(crowded.find(" more</text>") != crowded.npos);
  }

  TEST_CASE("loss_curve_svg: non-finite points leave a gap") {
    auto curve = run_of(10);
    curve.train_loss[4] = kNan;
    curve.train_loss[7] = kInf;
    curve.step[9] = kNan;
    curve.validation = {{"", {5, 10}, {-kInf, 4.5}}};
    const auto svg = fsdp::loss_curve_svg(curve);

    CHECK(svg.find("nan") == svg.npos);
    CHECK(svg.find("inf") == svg.npos);
    CHECK(count(svg, "stroke=\"#1f62b4\"") == 4);  // three stretches and the legend
    CHECK(count(svg, "<circle") == 2);
  }

  TEST_CASE("loss_curve_svg: one point, no point, a constant") {
    for (const int steps : {0, 1}) {
      const auto svg = fsdp::loss_curve_svg(run_of(steps));
      CHECK(svg.find("nan") == svg.npos);
      CHECK((svg.find("no finite loss") != svg.npos) == (steps == 0));
    }
    auto flat = run_of(30);
    for (auto& loss : flat.train_loss) loss = 3;
    CHECK(fsdp::loss_curve_svg(flat).find("nan") == std::string::npos);
  }

  TEST_CASE("loss_curve_svg: a long run keeps its spikes and stays small") {
    auto curve = run_of(300000);
    curve.train_loss[150001] = 19.5;
    curve.train_loss[200001] = kNan;
    const auto svg = fsdp::loss_curve_svg(curve);

    CHECK(svg.size() < 150000);
    CHECK(svg.find(">20</text>") != svg.npos);  // the axis reaches the spike
  }

  TEST_CASE("loss_curve_svg: throws on losses without steps") {
    auto curve = run_of(3);
    curve.train_loss.pop_back();
    CHECK_THROWS_AS(fsdp::loss_curve_svg(curve), std::invalid_argument);
  }
}
