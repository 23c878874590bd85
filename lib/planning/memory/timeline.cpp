#include "lib/planning/memory/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>

#include "lib/reports/plots/canvas.hpp"
#include "lib/reports/plots/figure.hpp"

namespace fsdp {
namespace {

constexpr Point kTopLeft{72, 116};  // corner of the plot area; the other one is kBottomRight

constexpr Color kLimit{190, 30, 45};

constexpr std::array<Color, 12> kLayerColors{{{31, 98, 180},
                                              {91, 148, 214},
                                              {158, 195, 235},
                                              {46, 139, 112},
                                              {132, 196, 170},
                                              {222, 155, 43},
                                              {209, 84, 24},
                                              {120, 120, 120},
                                              {170, 110, 170},
                                              {203, 203, 203},
                                              {90, 70, 130},
                                              {60, 60, 60}}};

double total(const MemoryTimeline::Phase& phase) {
  return std::accumulate(phase.bytes.begin(), phase.bytes.end(), 0.0);
}

/// Maps bytes to the vertical axis, in the unit that suits the largest value.
struct Scale {
  Axis axis;
  double unit = 1;
  const char* unit_name = "MiB";

  explicit Scale(double largest) {
    unit = largest >= 2147483648.0 ? 1073741824.0 : 1048576.0;
    unit_name = unit > 1048576.0 ? "GiB" : "MiB";
    axis = make_axis(0, std::max(largest / unit, 1e-3), 6, AxisKind::values);
  }
  double y(double bytes) const {
    return kBottomRight.y - (bytes / unit - axis.low) / (axis.high - axis.low) * (kBottomRight.y - kTopLeft.y);
  }
};

void check(const MemoryTimeline& timeline) {
  if (timeline.layers.size() > kLayerColors.size()) throw std::invalid_argument("memory timeline: too many layers");
  for (const auto& phase : timeline.phases) {
    if (phase.bytes.size() != timeline.layers.size()) {
      throw std::invalid_argument(fmt::format("memory timeline: '{}' has {} numbers for {} layers", phase.name,
                                              phase.bytes.size(), timeline.layers.size()));
    }
  }
}

void draw_legend(Canvas& canvas, const MemoryTimeline& timeline) {
  double x = kTopLeft.x, y = 76;
  for (std::size_t i = 0; i < timeline.layers.size(); ++i) {
    const double width = 30 + 6.6 * static_cast<double>(timeline.layers[i].size());
    if (x + width > kBottomRight.x) {
      x = kTopLeft.x;
      y += 18;
    }
    canvas.rectangle({x, y - 9}, {x + 11, y + 1}, kLayerColors[i]);
    canvas.text({x + 16, y}, timeline.layers[i], {11, kFaintInk});
    x += width;
  }
}

void draw_columns(Canvas& canvas, const MemoryTimeline& timeline, const Scale& scale) {
  const auto n = static_cast<double>(timeline.phases.size());
  for (std::size_t m = 0; m < timeline.phases.size(); ++m) {
    const double left = kTopLeft.x + (kBottomRight.x - kTopLeft.x) * static_cast<double>(m) / n;
    const double right = kTopLeft.x + (kBottomRight.x - kTopLeft.x) * static_cast<double>(m + 1) / n;
    double below = 0;
    for (std::size_t i = 0; i < timeline.layers.size(); ++i) {
      const double bytes = timeline.phases[m].bytes[i];
      if (bytes <= 0) continue;
      canvas.rectangle({left, scale.y(below + bytes)}, {right, scale.y(below)}, kLayerColors[i]);
      below += bytes;
    }
  }
}

void draw_peak(Canvas& canvas, const MemoryTimeline& timeline, const Scale& scale) {
  const auto peak = std::max_element(timeline.phases.begin(), timeline.phases.end(),
                                     [](const auto& a, const auto& b) { return total(a) < total(b); });
  if (peak == timeline.phases.end()) return;
  const auto place = static_cast<double>(peak - timeline.phases.begin()) + 0.5;
  const double x = kTopLeft.x + (kBottomRight.x - kTopLeft.x) * place / static_cast<double>(timeline.phases.size());
  canvas.marker({x, scale.y(total(*peak))}, 4, kInk);
  const TextStyle style{12, kInk, Anchor::middle, true, true};
  canvas.text({std::clamp(x, kTopLeft.x + 110, kBottomRight.x - 110), scale.y(total(*peak)) - 9},
              fmt::format("{:.2f} {}: {}", total(*peak) / scale.unit, scale.unit_name, peak->name), style);
}

void draw(Canvas& canvas, const MemoryTimeline& timeline) {
  check(timeline);
  double largest = timeline.limit_bytes;
  for (const auto& phase : timeline.phases) largest = std::max(largest, total(phase));
  const Scale scale(largest);
  canvas.rectangle({0, 0}, {kFigureWidth, kFigureHeight}, kPaper);
  canvas.text({kTopLeft.x, 34}, timeline.title, {18, kInk, Anchor::start, true});
  canvas.text({kTopLeft.x, 53}, timeline.subtitle, {12, kFaintInk});
  for (const double tick : scale.axis.ticks) {
    const double y = scale.y(tick * scale.unit);
    canvas.polyline(std::vector<Point>{{kTopLeft.x, y}, {kBottomRight.x, y}}, {kGrid, 1});
    canvas.text({kTopLeft.x - 8, y + 4}, tick_label(tick, scale.axis.tick_step), {11, kFaintInk, Anchor::end});
  }
  canvas.text({16, kTopLeft.y - 8}, scale.unit_name, {11, kFaintInk});
  draw_columns(canvas, timeline, scale);
  canvas.polyline(std::vector<Point>{{kTopLeft.x, kBottomRight.y}, {kBottomRight.x, kBottomRight.y}}, {kAxisLine, 1});
  canvas.text({(kTopLeft.x + kBottomRight.x) / 2, kBottomRight.y + 28}, "moments of one optimizer step, in order",
              {12, kFaintInk, Anchor::middle});
  if (timeline.limit_bytes > 0) {
    const double y = scale.y(timeline.limit_bytes);
    canvas.polyline(std::vector<Point>{{kTopLeft.x, y}, {kBottomRight.x, y}}, {kLimit, 1.5});
    canvas.text({kBottomRight.x, y - 5}, timeline.limit_name, {11, kLimit, Anchor::end, true, true});
  }
  draw_peak(canvas, timeline, scale);
  draw_legend(canvas, timeline);
}

}  // namespace

std::string memory_timeline_svg(const MemoryTimeline& timeline) {
  Canvas canvas(kFigureWidth, kFigureHeight);
  draw(canvas, timeline);
  return canvas.document();
}

}  // namespace fsdp
