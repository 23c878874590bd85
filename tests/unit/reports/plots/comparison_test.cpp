#include "lib/reports/plots/loss_curve.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <stdexcept>

namespace {

const double kAbsent = std::nan("");

fsdp::RunsPicture two_runs() {
  fsdp::RunsPicture picture;
  picture.title = "by sharding";
  picture.x_name = "tokens";
  picture.runs = {{.label = "full <shard>",
                   .x = {1, 2, 3},
                   .loss = {3.5, kAbsent, 2.5},
                   .val_x = {3},
                   .val_loss = {2.75},
                   .speed = 1000,
                   .low = 900,
                   .high = 1100},
                  {.label = "no steps",
                   .x = {},
                   .loss = {},
                   .val_x = {},
                   .val_loss = {},
                   .speed = kAbsent,
                   .low = kAbsent,
                   .high = kAbsent}};
  return picture;
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_SUITE("plot/comparison") {
  TEST_CASE("labels, speeds, losses and the title of x are in the picture, the labels in both legends") {
    const auto svg = fsdp::runs_picture_svg(two_runs());

    for (const char* words : {"by sharding", ">1,000<", ">tokens<", ">2.5000<", ">2.7500<"}) {
      CAPTURE(words);
      CHECK(svg.find(words) != std::string::npos);
    }
    for (const char* label : {">full &lt;shard&gt;<", ">no steps<"}) CHECK(occurrences(svg, label) == 2);
    CHECK(occurrences(svg, "<circle") == 2);  // a validation, and the one of its legend
    CHECK(svg.find("paint-order") == std::string::npos);
  }

  TEST_CASE("a long title is wrapped, a long label keeps its end") {
    auto picture = two_runs();
    picture.title = "by";
    for (int i = 0; i < 40; ++i) picture.title += " option-" + std::to_string(i) + ",";
    picture.runs[0].label = std::string(100, 'x').append("/the-end");
    const auto svg = fsdp::runs_picture_svg(picture);

    CHECK(occurrences(svg, ">option-") == 5);
    CHECK(svg.find("…xxx") != std::string::npos);
    CHECK(svg.find("xxx/the-end<") != std::string::npos);
  }

  TEST_CASE("lines that hide others are dashed, each with a place of its own") {
    fsdp::RunsPicture picture;
    for (int r = 0; r < 4; ++r) {
      auto& run = picture.runs.emplace_back();
      for (int i = 0; i < 50; ++i) {
        run.x.push_back(i);
        run.loss.push_back(10 - 0.1 * i + (r == 2 ? 1 : 0) + 1e-4 * r);
      }
    }
    const auto dashes = fsdp::dashes_of(picture);

    CHECK(dashes[0].off == 0);
    CHECK(dashes[2].off == 0);
    CHECK(dashes[1].off == 2 * dashes[1].on);
    CHECK(dashes[3].off == 2 * dashes[3].on);
    CHECK(dashes[1].offset != dashes[3].offset);
    CHECK(occurrences(fsdp::runs_picture_svg(picture), "stroke-dasharray=\"7 14\"") == 2);
  }

  TEST_CASE("a picture without data says so") {
    CHECK(fsdp::runs_picture_svg({}).find("no finite loss") != std::string::npos);
  }

  TEST_CASE("throws on losses without a position") {
    auto picture = two_runs();
    picture.runs[0].x.pop_back();
    CHECK_THROWS_AS(fsdp::runs_picture_svg(picture), std::invalid_argument);
  }
}
