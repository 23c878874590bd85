#include "lib/reports/plots/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "lib/reports/plots/axis.hpp"
#include "lib/reports/plots/canvas.hpp"

namespace fsdp {
namespace {

constexpr int kPictureWidth = 1100;
constexpr double kTop = 76, kRowHeight = 26, kLeastHeight = 300, kBelow = 60;
constexpr double kLossLeft = 66, kLossRight = 560;  // horizontal extent of the plot area for losses
constexpr double kBarRight = 960;
constexpr std::size_t kMostPoints = 2000;  // maximum number of points per line

constexpr Color kBack{255, 255, 255};
constexpr Color kText{32, 38, 46};
constexpr Color kFaintText{96, 106, 118};
constexpr Color kRule{228, 232, 237};
// Distinguishable with color-vision deficiencies: P. Tol's "bright" and "muted" schemes without the greys.
constexpr std::array<Color, 8> kPalette{{{68, 119, 170},
                                         {238, 102, 119},
                                         {34, 136, 51},
                                         {204, 187, 68},
                                         {102, 204, 238},
                                         {170, 51, 119},
                                         {136, 34, 85},
                                         {17, 119, 51}}};

Color color_of(std::size_t run) { return kPalette[run % kPalette.size()]; }

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void take(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

double bottom_of(const RunsPicture& picture) {
  return kTop + std::max(kLeastHeight, kRowHeight * static_cast<double>(picture.runs.size()));
}

void draw_loss_axes(Canvas& canvas, const RunsPicture& picture, const Axis& x, const Axis& y, double bottom) {
  const TextStyle beside{12, kFaintText, Anchor::end}, below{12, kFaintText, Anchor::middle};
  const auto up = [&](double value) { return bottom - (value - y.low) / (y.high - y.low) * (bottom - kTop); };
  const auto right = [&](double value) {
    return kLossLeft + (value - x.low) / (x.high - x.low) * (kLossRight - kLossLeft);
  };
  for (const double tick : y.ticks) {
    canvas.polyline(std::vector<Point>{{kLossLeft, up(tick)}, {kLossRight, up(tick)}}, {kRule, 1});
    canvas.text({kLossLeft - 8, up(tick) + 4}, tick_label(tick, y.tick_step), beside);
  }
  for (const double tick : x.ticks) canvas.text({right(tick), bottom + 20}, tick_label(tick, x.tick_step), below);
  canvas.text({(kLossLeft + kLossRight) / 2, bottom + 40}, picture.x_name, below);
  canvas.text({kLossLeft, kTop - 14}, "loss", {12, kFaintText, Anchor::start, true});
}

void draw_losses(Canvas& canvas, const RunsPicture& picture, double bottom) {
  Range across, up;
  for (const auto& run : picture.runs) {
    for (std::size_t i = 0; i < run.x.size(); ++i) {
      if (!std::isfinite(run.loss[i])) continue;
      across.take(run.x[i]);
      up.take(run.loss[i]);
    }
  }
  if (across.empty()) {
    canvas.text({kLossLeft, kTop + 20}, "no finite loss was logged", {12, kFaintText});
    return;
  }
  const auto x = make_axis(across.low, across.high, 5, AxisKind::steps);
  const auto y = make_axis(up.low, up.high, 6, AxisKind::values);
  draw_loss_axes(canvas, picture, x, y, bottom);
  for (std::size_t r = 0; r < picture.runs.size(); ++r) {
    const auto& run = picture.runs[r];
    std::vector<Point> line;
    const auto flush = [&] {
      if (!line.empty()) canvas.polyline(line, {color_of(r), r < kPalette.size() ? 2.2 : 1.2});
      line.clear();
    };
    const std::size_t stride = 1 + run.x.size() / kMostPoints;
    for (std::size_t i = 0; i < run.x.size(); i += stride) {
      if (!std::isfinite(run.x[i]) || !std::isfinite(run.loss[i])) {
        flush();
        continue;
      }
      line.push_back({kLossLeft + (run.x[i] - x.low) / (x.high - x.low) * (kLossRight - kLossLeft),
                      bottom - (run.loss[i] - y.low) / (y.high - y.low) * (bottom - kTop)});
    }
    flush();
  }
}

std::string fitting(std::string label, double width) {
  while (label.size() > 4 && stroke_text_width(label, 12) > width) label.erase(0, 1);
  return label;
}

void draw_speeds(Canvas& canvas, const RunsPicture& picture) {
  double widest = 0, fastest = 0;
  for (const auto& run : picture.runs) {
    widest = std::max(widest, stroke_text_width(run.label, 12));
    fastest = std::max({fastest, std::isfinite(run.speed) ? run.speed : 0, std::isfinite(run.high) ? run.high : 0});
  }
  const double label_width = std::min(widest, 200.0);
  const double left = kLossRight + 40 + label_width + 10;
  canvas.text({left, kTop - 14}, "tokens/s", {12, kFaintText, Anchor::start, true});
  for (std::size_t r = 0; r < picture.runs.size(); ++r) {
    const auto& run = picture.runs[r];
    const double middle = kTop + kRowHeight * (static_cast<double>(r) + 0.5);
    canvas.text({left - 10, middle + 4}, fitting(run.label, label_width), {12, kText, Anchor::end});
    const auto end_of = [&](double speed) { return left + speed / fastest * (kBarRight - left); };
    if (!std::isfinite(run.speed) || fastest <= 0) {
      canvas.polyline(std::vector<Point>{{left, middle - 7}, {left, middle + 7}}, {color_of(r), 3});
      continue;
    }
    canvas.rectangle({left, middle - 8}, {end_of(run.speed), middle + 8}, color_of(r));
    double end = end_of(run.speed);
    if (std::isfinite(run.low) && std::isfinite(run.high) && run.high > run.low) {
      canvas.polyline(std::vector<Point>{{end_of(run.low), middle}, {end_of(run.high), middle}}, {kText, 1.5});
      for (const double at : {run.low, run.high})
        canvas.polyline(std::vector<Point>{{end_of(at), middle - 4}, {end_of(at), middle + 4}}, {kText, 1.5});
      end = std::max(end, end_of(run.high));
    }
    canvas.text({end + 8, middle + 4}, with_separators(std::llround(run.speed)), {12, kText});
  }
}

void draw_runs(Canvas& canvas, const RunsPicture& picture) {
  const double bottom = bottom_of(picture);
  canvas.rectangle({0, 0}, {kPictureWidth, bottom + kBelow}, kBack);
  canvas.text({kLossLeft, 36}, picture.title, {18, kText, Anchor::start, true});
  draw_losses(canvas, picture, bottom);
  draw_speeds(canvas, picture);
}

void check(const RunsPicture& picture) {
  for (const auto& run : picture.runs) {
    if (run.x.size() != run.loss.size()) {
      throw std::invalid_argument(
          fmt::format("runs' picture: {} has {} places and {} losses", run.label, run.x.size(), run.loss.size()));
    }
  }
}

}  // namespace

std::string runs_picture_svg(const RunsPicture& picture) {
  check(picture);
  SvgCanvas canvas(kPictureWidth, static_cast<int>(bottom_of(picture) + kBelow));
  draw_runs(canvas, picture);
  return canvas.document();
}

std::string runs_picture_png(const RunsPicture& picture) {
  check(picture);
  PngCanvas canvas(kPictureWidth, static_cast<int>(bottom_of(picture) + kBelow), 2);
  draw_runs(canvas, picture);
  return canvas.file();
}

}  // namespace fsdp
