#include "lib/reports/plots/loss_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "lib/reports/plots/canvas.hpp"

namespace fsdp {
namespace {

constexpr int kWidth = 900;
constexpr int kHeight = 540;
constexpr Point kTopLeft{72, 96};  // corner of the plot area
constexpr Point kBottomRight{872, 484};

constexpr Color kPaper{255, 255, 255};
constexpr Color kInk{32, 38, 46};
constexpr Color kFaintInk{96, 106, 118};
constexpr Color kGrid{228, 232, 237};
constexpr Color kAxisLine{150, 158, 168};
constexpr Color kTrain{31, 98, 180};
constexpr Color kTrainRaw{176, 203, 234};
// Colors of validation sets; a run with a single set uses the first.
constexpr std::array<Color, 6> kEvals{
    {{209, 84, 24}, {34, 136, 51}, {170, 51, 119}, {120, 94, 20}, {68, 170, 153}, {136, 34, 85}}};

constexpr std::size_t kSmoothFrom = 20;  // minimum number of points for smoothing

/// Points in data coordinates; non-finite points are gaps.
using Series = std::vector<Point>;

Series make_series(const std::vector<double>& x, const std::vector<double>& y, const char* name) {
  if (x.size() != y.size()) {
    throw std::invalid_argument(fmt::format("loss curve: {} {} steps, {} losses", x.size(), name, y.size()));
  }
  Series series;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool finite = std::isfinite(x[i]) && std::isfinite(y[i]);
    series.push_back(finite ? Point{x[i], y[i]} : Point{0, std::numeric_limits<double>::quiet_NaN()});
  }
  return series;
}

/// The curve of one validation set.
struct EvalSeries {
  std::string name;
  Series points;
  Color color;
};

bool is_gap(const Point& point) { return std::isnan(point.y); }

Series without_gaps(Series series) {
  std::erase_if(series, is_gap);
  return series;
}

/// Centred moving average over `half` points on either side, so that it does not lag. The window shrinks at the start,
/// where the loss falls steeply, and is one-sided at the end, whose value matters most.
Series smooth(const Series& series, std::size_t half) {
  std::vector<double> sum{0};  // prefix sums; `count` has the number of points in them
  std::vector<std::size_t> count{0};
  for (const Point& point : series) {
    sum.push_back(sum.back() + (is_gap(point) ? 0 : point.y));
    count.push_back(count.back() + (is_gap(point) ? 0 : 1));
  }
  Series smoothed = series;
  for (std::size_t i = 0; i < series.size(); ++i) {
    if (is_gap(series[i])) continue;
    const std::size_t reach = std::min(half, i);
    const std::size_t begin = i - reach, end = std::min(i + reach + 1, series.size());
    smoothed[i].y = (sum[end] - sum[begin]) / static_cast<double>(count[end] - count[begin]);
  }
  return smoothed;
}

/// Reduces a series to at most 4 points per pixel column (first, lowest, highest, last), which looks the same.
Series thin_out(const Series& series) {
  const std::size_t columns = kWidth;
  if (series.size() <= 4 * columns) return series;
  Series thinned;
  for (std::size_t column = 0; column < columns; ++column) {
    const auto begin = series.begin() + static_cast<std::ptrdiff_t>(column * series.size() / columns);
    const auto end = series.begin() + static_cast<std::ptrdiff_t>((column + 1) * series.size() / columns);
    const auto lower = [](const Point& a, const Point& b) { return a.y < b.y || (is_gap(b) && !is_gap(a)); };
    const auto higher = [](const Point& a, const Point& b) { return a.y > b.y || (is_gap(b) && !is_gap(a)); };
    std::vector<Series::const_iterator> kept{begin, std::min_element(begin, end, lower),
                                             std::min_element(begin, end, higher), end - 1};
    std::sort(kept.begin(), kept.end());
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
    for (const auto& point : kept) thinned.push_back(*point);
  }
  return thinned;
}

/// The plot area: maps data coordinates to pixels.
class Frame {
 public:
  Frame(const Series& train, const std::vector<EvalSeries>& evals)
      : x_(make_axis(0, 1, 8, AxisKind::steps)), y_(make_axis(0, 1, 6, AxisKind::values)) {
    Series all = without_gaps(train);
    for (const auto& eval : evals) {
      for (const Point& point : without_gaps(eval.points)) all.push_back(point);
    }
    if (all.empty()) return;
    const auto [left, right] = std::ranges::minmax(all, {}, &Point::x);
    const auto [bottom, top] = std::ranges::minmax(all, {}, &Point::y);
    x_ = make_axis(left.x, right.x, 8, AxisKind::steps);
    y_ = make_axis(bottom.y, top.y, 6, AxisKind::values);
  }

  const Axis& x_axis() const { return x_; }
  const Axis& y_axis() const { return y_; }
  double x(double value) const {
    return kTopLeft.x + (value - x_.low) / (x_.high - x_.low) * (kBottomRight.x - kTopLeft.x);
  }
  double y(double value) const {
    return kBottomRight.y - (value - y_.low) / (y_.high - y_.low) * (kBottomRight.y - kTopLeft.y);
  }

 private:
  Axis x_, y_;
};

void draw_axes(Canvas& canvas, const Frame& frame) {
  const TextStyle label{12, kFaintInk};
  TextStyle left = label, below = label;
  left.anchor = Anchor::end;
  below.anchor = Anchor::middle;
  for (const double tick : frame.y_axis().ticks) {
    const double y = std::round(frame.y(tick)) + 0.5;
    canvas.polyline(std::vector<Point>{{kTopLeft.x, y}, {kBottomRight.x, y}}, {kGrid, 1});
    canvas.text({kTopLeft.x - 10, y + 4}, tick_label(tick, frame.y_axis().tick_step), left);
  }
  const double base = std::round(kBottomRight.y) + 0.5;
  for (const double tick : frame.x_axis().ticks) {
    const double x = std::round(frame.x(tick)) + 0.5;
    canvas.polyline(std::vector<Point>{{x, base}, {x, base + 5}}, {kAxisLine, 1});
    canvas.text({x, base + 20}, tick_label(tick, frame.x_axis().tick_step), below);
  }
  canvas.polyline(std::vector<Point>{{kTopLeft.x, base}, {kBottomRight.x, base}}, {kAxisLine, 1});
  canvas.text({(kTopLeft.x + kBottomRight.x) / 2, base + 42}, "step", below);
  canvas.text({kTopLeft.x - 10, kTopLeft.y - 14}, "loss", left);
}

/// Draws a line for each stretch of points between gaps.
void draw_line(Canvas& canvas, const Frame& frame, const Series& series, Stroke stroke) {
  std::vector<Point> stretch;
  const auto flush = [&] {
    if (stretch.size() == 1) stroke.width += 4;  // makes a single point visible
    canvas.polyline(stretch, stroke);
    if (stretch.size() == 1) stroke.width -= 4;
    stretch.clear();
  };
  for (const Point& point : series) {
    if (is_gap(point)) {
      flush();
    } else {
      stretch.push_back({frame.x(point.x), frame.y(point.y)});
    }
  }
  flush();
}

/// \param with_values  also print the values beside the points
void draw_eval(Canvas& canvas, const Frame& frame, const EvalSeries& eval, bool with_values) {
  draw_line(canvas, frame, eval.points, {eval.color, 1.5});
  const auto points = without_gaps(eval.points);
  for (const Point& point : points) canvas.marker({frame.x(point.x), frame.y(point.y)}, 4, eval.color);
  if (!with_values) return;
  // Prints values from the last point backwards, as far as there is room.
  double room_until = kWidth;
  const TextStyle style{11, eval.color, Anchor::middle, true, true};
  for (auto point = points.rbegin(); point != points.rend(); ++point) {
    const double x = std::clamp(frame.x(point->x), kTopLeft.x + 18, kBottomRight.x - 18);
    if (x > room_until) continue;
    canvas.text({x, frame.y(point->y) - 10}, fmt::format("{:.3f}", point->y), style);
    room_until = x - 54;
  }
}

std::string eval_legend(const EvalSeries& eval, bool is_alone) {
  const auto best = std::ranges::min(eval.points, {}, &Point::y);
  const auto name = eval.name.empty() ? "validation" : eval.name;
  if (!is_alone) return fmt::format("{} {:.3f}, best {:.3f}", name, eval.points.back().y, best.y);
  auto text = fmt::format("{}, last {:.3f}", name, eval.points.back().y);
  if (eval.points.size() > 1)
    text += fmt::format(", best {:.3f} at step {}", best.y, with_separators(std::llround(best.x)));
  return text;
}

/// \param evals  curves without gaps, none of them empty
void draw_legend(Canvas& canvas, const Series& train, const Series& smoothed, const std::vector<EvalSeries>& evals) {
  constexpr double kPerCharacter = 7.5;
  const double y = 72;
  double x = kTopLeft.x;
  const TextStyle style{12, kFaintInk};
  const auto width_of = [](const std::string& text) { return 54 + kPerCharacter * static_cast<double>(text.size()); };
  if (!train.empty()) {
    canvas.polyline(std::vector<Point>{{x, y - 4}, {x + 22, y - 4}}, {kTrain, 2.5});
    const auto text =
        fmt::format("train, last {:.3f}{}", smoothed.back().y, train.size() >= kSmoothFrom ? " (smoothed)" : "");
    canvas.text({x + 30, y}, text, style);
    x += width_of(text);
  }
  for (std::size_t i = 0; i < evals.size(); ++i) {
    const auto text = eval_legend(evals[i], evals.size() == 1);
    if (i > 0 && x + width_of(text) - 24 > kWidth) {
      canvas.text({x, y}, fmt::format("and {} more", evals.size() - i), style);
      break;
    }
    canvas.polyline(std::vector<Point>{{x, y - 4}, {x + 22, y - 4}}, {evals[i].color, 1.5});
    canvas.marker({x + 11, y - 4}, 4, evals[i].color);
    canvas.text({x + 30, y}, text, style);
    x += width_of(text);
  }
  if (train.empty() && evals.empty()) canvas.text({x, y}, "no finite loss was logged", style);
}

std::vector<EvalSeries> eval_series(const LossCurve& curve) {
  std::vector<EvalSeries> all;
  for (const auto& set : curve.validation) {
    const auto color = kEvals[all.size() % kEvals.size()];
    all.push_back({set.name, make_series(set.step, set.loss, "validation"), color});
  }
  return all;
}

void draw(Canvas& canvas, const LossCurve& curve) {
  const auto train = make_series(curve.step, curve.train_loss, "training");
  auto evals = eval_series(curve);
  const bool is_smoothed = train.size() >= kSmoothFrom;
  const auto smoothed = is_smoothed ? smooth(train, std::max<std::size_t>(2, train.size() / 60)) : train;
  const Frame frame(train, evals);

  canvas.rectangle({0, 0}, {kWidth, kHeight}, kPaper);
  canvas.text({kTopLeft.x, curve.subtitle.empty() ? 44.0 : 34.0}, curve.title, {18, kInk, Anchor::start, true});
  canvas.text({kTopLeft.x, 53}, curve.subtitle, {12, kFaintInk});
  draw_axes(canvas, frame);
  if (is_smoothed) draw_line(canvas, frame, thin_out(train), {kTrainRaw, 1});
  draw_line(canvas, frame, thin_out(smoothed), {kTrain, 2.2});
  for (auto& eval : evals) {
    draw_eval(canvas, frame, eval, evals.size() == 1);
    eval.points = without_gaps(std::move(eval.points));
  }
  std::erase_if(evals, [](const auto& eval) { return eval.points.empty(); });
  draw_legend(canvas, without_gaps(train), without_gaps(smoothed), evals);
}

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

std::string loss_curve_svg(const LossCurve& curve) {
  SvgCanvas canvas(kWidth, kHeight);
  draw(canvas, curve);
  return canvas.document();
}

std::string loss_curve_png(const LossCurve& curve) {
  PngCanvas canvas(kWidth, kHeight, 2);
  draw(canvas, curve);
  return canvas.file();
}

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
