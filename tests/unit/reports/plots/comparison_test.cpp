#include "lib/reports/plots/loss_curve.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <stdexcept>

namespace {

fsdp::RunsPicture two_runs() {
  fsdp::RunsPicture picture;
  picture.title = "by sharding";
  picture.x_name = "tokens";
  picture.runs.push_back({"full <shard>", {1, 2, 3}, {3.5, std::nan(""), 2.5}, 1000, 900, 1100});
  picture.runs.push_back({"no steps", {}, {}, std::nan(""), std::nan(""), std::nan("")});
  return picture;
}

}  // namespace

TEST_SUITE("plot/comparison") {
  TEST_CASE("labels, speeds and the title of x are in the picture; a gap splits a line") {
    const auto svg = fsdp::runs_picture_svg(two_runs());

    for (const char* words : {"by sharding", "full &lt;shard&gt;", "no steps", ">1,000<", ">tokens<"}) {
      CAPTURE(words);
      CHECK(svg.find(words) != std::string::npos);
    }
    CHECK(fsdp::runs_picture_png(two_runs()).substr(1, 3) == "PNG");
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
