#include "lib/reports/plots/canvas.hpp"

#include <doctest/doctest.h>

#include <cmath>

TEST_SUITE("plot/axis") {
  TEST_CASE("make_axis: round ticks inside the range") {
    const auto axis = fsdp::make_axis(3.21, 10.87, 6, fsdp::AxisKind::values);

    CHECK(axis.tick_step == 1);
    CHECK(axis.low == 3);
    CHECK(axis.high == 11);
    CHECK(axis.ticks.size() == 9);
  }

  TEST_CASE("make_axis: steps keep their bounds and have whole ticks") {
    const auto axis = fsdp::make_axis(1, 147, 8, fsdp::AxisKind::steps);

    CHECK(axis.low == 1);
    CHECK(axis.high == 147);
    CHECK(axis.ticks == std::vector<double>{20, 40, 60, 80, 100, 120, 140});
    CHECK(fsdp::make_axis(1, 3, 8, fsdp::AxisKind::steps).ticks == std::vector<double>{1, 2, 3});
    CHECK(fsdp::make_axis(1, 1, 8, fsdp::AxisKind::steps).ticks == std::vector<double>{0, 1, 2});
  }

  TEST_CASE("make_axis: equal, tiny, huge and negative ranges have a few ticks each") {
    for (const auto& [low, high] : {std::pair{5.0, 5.0}, {0.0, 0.0}, {1e-9, 3e-9}, {-7.0, 1e9}, {1e15, 1e15 + 1}}) {
      CAPTURE(low);
      CAPTURE(high);
      const auto axis = fsdp::make_axis(low, high, 6, fsdp::AxisKind::values);
      CHECK(axis.low <= low);
      CHECK(axis.high >= high);
      CHECK(axis.low < axis.high);
      CHECK(axis.ticks.size() >= 2);
      CHECK(axis.ticks.size() <= 12);
    }
  }

  TEST_CASE("tick_label: as many decimals as the ticks need") {
    CHECK(fsdp::tick_label(0.25, 0.05) == "0.25");
    CHECK(fsdp::tick_label(3, 0.5) == "3.0");
    CHECK(fsdp::tick_label(1e-17, 0.5) == "0");
    CHECK(fsdp::tick_label(12000, 2000) == "12,000");
    CHECK(fsdp::tick_label(1.5e6, 5e5) == "1.5M");
    CHECK(fsdp::with_separators(-1234567) == "-1,234,567");
    CHECK(fsdp::with_separators(999) == "999");
  }
}
