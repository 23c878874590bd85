#include "lib/planning/memory/timeline.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

namespace {

fsdp::MemoryTimeline timeline() {
  fsdp::MemoryTimeline timeline;
  timeline.title = "a step";
  timeline.layers = {"parameters", "activations"};
  timeline.phases = {{"forward", {1e9, 1e9}}, {"backward", {1e9, 3e9}}};
  timeline.limit_bytes = 8e9;
  timeline.limit_name = "the card";
  return timeline;
}

}  // namespace

TEST_SUITE("memory/timeline") {
  TEST_CASE("the SVG names layers, limit and the phase of the peak") {
    const auto svg = fsdp::memory_timeline_svg(timeline());

    for (const char* text : {"a step", "parameters", "activations", "the card", "3.73 GiB: backward"}) {
      CHECK(svg.find(text) != std::string::npos);
    }
  }

  TEST_CASE("an empty timeline has no columns; numbers must match the layers") {
    fsdp::MemoryTimeline empty;
    CHECK(fsdp::memory_timeline_svg(empty).find("</svg>") != std::string::npos);
    auto wrong = timeline();
    wrong.phases[0].bytes.pop_back();
    CHECK_THROWS_AS(fsdp::memory_timeline_svg(wrong), std::invalid_argument);
  }
}
