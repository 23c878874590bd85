#include "lib/reports/plots/loss_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "lib/base/types/index.hpp"
#include "lib/reports/plots/canvas.hpp"
#include "lib/reports/plots/figure.hpp"

namespace fsdp {
namespace {

constexpr Point kTopLeft{72, 96};  // corner of the plot area; the other one is kBottomRight

constexpr Color kTrain{31, 98, 180};
constexpr Color kTrainRaw{176, 203, 234};
// Colors of validation sets; a run with a single set uses the first.
constexpr std::array<Color, 6> kEvals{
    {{209, 84, 24}, {34, 136, 51}, {170, 51, 119}, {120, 94, 20}, {68, 170, 153}, {136, 34, 85}}};

constexpr double kDash = 7;  // pixels
constexpr std::size_t kFewestHidden = 3;

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
Series thin_out(const Series& series, std::size_t columns = kFigureWidth) {
  if (series.size() <= 4 * columns) return series;
  Series thinned;
  for (std::size_t column = 0; column < columns; ++column) {
    const auto begin = iterator_at(series, column * series.size() / columns);
    const auto end = iterator_at(series, (column + 1) * series.size() / columns);
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
  double room_until = kFigureWidth;
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
    if (i > 0 && x + width_of(text) - 24 > kFigureWidth) {
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

  canvas.rectangle({0, 0}, {kFigureWidth, kFigureHeight}, kPaper);
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
constexpr double kTitleSize = 18, kTitleLine = 24, kRowHeight = 26, kPlotHeight = 320, kBelowPlot = 64,
                 kLegendLine = 20;
constexpr double kLossLeft = 66, kLossRight = 600;  // horizontal extent of the plot area for losses
constexpr double kBarRight = 1000;
constexpr double kMarkersApart = 14;  // pixels, so that validations do not become a band

/// The plot area for losses.
struct LossPanel {
  Axis x, y;
  double top;
  Point at(Point p) const {
    return {kLossLeft + (p.x - x.low) / (x.high - x.low) * (kLossRight - kLossLeft),
            top + kPlotHeight - (p.y - y.low) / (y.high - y.low) * kPlotHeight};
  }
};

/// Breaks a text at blanks into lines that fit `width`.
std::vector<std::string> wrapped(const std::string& text, double width, double size) {
  std::vector<std::string> lines{""};
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(' ', at), text.size());
    const auto word = text.substr(at, end - at);
    auto& line = lines.back();
    if (line.empty() || text_width(line + " " + word, size) <= width) {
      line += (line.empty() ? "" : " ") + word;
    } else {
      lines.push_back(word);
    }
    at = end + 1;
  }
  return lines;
}

/// Leaves out the beginning of a label that is too wide; names of runs and paths differ at their ends.
std::string fitting(const std::string& label, double width) {
  if (text_width(label, 12) <= width) return label;
  auto rest = label;
  while (!rest.empty() && text_width("…" + rest, 12) > width) {
    do rest.erase(0, 1);
    while (!rest.empty() && (static_cast<unsigned char>(rest[0]) & 0xC0U) == 0x80U);
  }
  return "…" + rest;
}

void draw_loss_axes(Canvas& canvas, const std::string& x_name, const LossPanel& panel) {
  const TextStyle beside{12, kFaintInk, Anchor::end}, below{12, kFaintInk, Anchor::middle};
  const double bottom = panel.top + kPlotHeight;
  for (const double tick : panel.y.ticks) {
    const double y = std::round(panel.at({panel.x.low, tick}).y) + 0.5;
    canvas.polyline(std::vector<Point>{{kLossLeft, y}, {kLossRight, y}}, {kGrid, 1});
    canvas.text({kLossLeft - 8, y + 4}, tick_label(tick, panel.y.tick_step), beside);
  }
  for (const double tick : panel.x.ticks)
    canvas.text({panel.at({tick, panel.y.low}).x, bottom + 20}, tick_label(tick, panel.x.tick_step), below);
  canvas.text({(kLossLeft + kLossRight) / 2, bottom + 40}, x_name, below);
}

void draw_run_line(Canvas& canvas, const LossPanel& panel, const Series& series, Stroke stroke) {
  std::vector<Point> line;
  for (const auto& point : series) {
    if (!is_gap(point)) {
      line.push_back(panel.at(point));
      continue;
    }
    canvas.polyline(line, stroke);
    line.clear();
  }
  canvas.polyline(line, stroke);
}

void draw_run_validation(Canvas& canvas, const LossPanel& panel, const Series& series, Color color) {
  draw_run_line(canvas, panel, series, {color, 1});
  const auto points = without_gaps(series);
  double free_from = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto center = panel.at(points[i]);
    const bool is_last = i + 1 == points.size();
    if (!is_last && (center.x < free_from || panel.at(points.back()).x < center.x + kMarkersApart)) continue;
    canvas.marker(center, 4, color);
    free_from = center.x + kMarkersApart;
  }
}

/// Draws the losses of all runs as they are, faintly, then their moving averages, then validation.
void draw_run_losses(Canvas& canvas, const LossPanel& panel, const RunsPicture& picture,
                     const std::vector<Dash>& dashes) {
  constexpr auto kColumns = static_cast<std::size_t>(kLossRight - kLossLeft);
  std::vector<Series> smoothed;
  for (std::size_t r = 0; r < picture.runs.size(); ++r) {
    const auto& run = picture.runs[r];
    smoothed.push_back(make_series(run.x, run.loss, run.label.c_str()));
    auto& series = smoothed.back();
    if (series.size() < kSmoothFrom) continue;
    const auto faint = [](std::uint8_t part) { return static_cast<std::uint8_t>(255 - (255 - part) / 4); };
    const auto color = run_color(r);
    draw_run_line(canvas, panel, thin_out(series, kColumns),
                  {{faint(color.red), faint(color.green), faint(color.blue)}, 1});
    series = smooth(series, std::max<std::size_t>(2, series.size() / 60));
  }
  for (std::size_t r = 0; r < picture.runs.size(); ++r)
    draw_run_line(canvas, panel, thin_out(smoothed[r], kColumns / 4), {run_color(r), 2.2, dashes[r]});
  for (std::size_t r = 0; r < picture.runs.size(); ++r) {
    const auto& run = picture.runs[r];
    draw_run_validation(canvas, panel, make_series(run.val_x, run.val_loss, run.label.c_str()), run_color(r));
  }
}

std::string last_of(const std::vector<double>& values) {
  return values.empty() || !std::isfinite(values.back()) ? "" : fmt::format("{:.4f}", values.back());
}

void draw_loss_legend(Canvas& canvas, const RunsPicture& picture, const std::vector<Dash>& dashes, double y) {
  constexpr double kLoss = kLossRight - 90;
  const TextStyle head{11, kFaintInk, Anchor::end}, figure{12, kInk, Anchor::end};
  const bool validates = std::ranges::any_of(picture.runs, [](const auto& run) { return !run.val_loss.empty(); });
  canvas.text({kLoss, y}, "last loss", head);
  if (validates) canvas.text({kLossRight, y}, "validation", head);
  for (std::size_t r = 0; r < picture.runs.size(); ++r) {
    const auto& run = picture.runs[r];
    y += kLegendLine;
    const Dash dash{.on = 6, .off = dashes[r].off > 0 ? 3.0 : 0};
    canvas.polyline(std::vector<Point>{{kLossLeft, y - 4}, {kLossLeft + 30, y - 4}}, {run_color(r), 2.2, dash});
    if (!run.val_loss.empty()) canvas.marker({kLossLeft + 15, y - 4}, 4, run_color(r));
    canvas.text({kLossLeft + 38, y}, fitting(run.label, kLoss - kLossLeft - 110), {12, kInk});
    canvas.text({kLoss, y}, last_of(run.loss), figure);
    canvas.text({kLossRight, y}, last_of(run.val_loss), figure);
  }
}

void draw_losses(Canvas& canvas, const RunsPicture& picture, double top) {
  Series all;
  for (const auto& run : picture.runs) {
    for (auto& series :
         {make_series(run.x, run.loss, run.label.c_str()), make_series(run.val_x, run.val_loss, run.label.c_str())}) {
      for (const auto& point : without_gaps(series)) all.push_back(point);
    }
  }
  canvas.text({kLossLeft, top - 14}, "loss", {12, kFaintInk, Anchor::start, true});
  if (all.empty()) {
    canvas.text({kLossLeft, top + 20}, "no finite loss was logged", {12, kFaintInk});
    return;
  }
  const auto [left, right] = std::ranges::minmax(all, {}, &Point::x);
  const auto [bottom, highest] = std::ranges::minmax(all, {}, &Point::y);
  const LossPanel panel{.x = make_axis(left.x, right.x, 5, AxisKind::steps),
                        .y = make_axis(bottom.y, highest.y, 6, AxisKind::values),
                        .top = top};
  draw_loss_axes(canvas, picture.x_name, panel);
  const auto dashes = dashes_of(picture);
  draw_run_losses(canvas, panel, picture, dashes);
  draw_loss_legend(canvas, picture, dashes, top + kPlotHeight + kBelowPlot);
}

void draw_speeds(Canvas& canvas, const RunsPicture& picture, double top) {
  double widest = 0, fastest = 0;
  for (const auto& run : picture.runs) {
    widest = std::max(widest, text_width(run.label, 12));
    fastest = std::max({fastest, std::isfinite(run.speed) ? run.speed : 0, std::isfinite(run.high) ? run.high : 0});
  }
  const double label_width = std::min(widest, 170.0);
  const double left = kLossRight + 50 + label_width + 10;
  canvas.text({left, top - 14}, "tokens/s", {12, kFaintInk, Anchor::start, true});
  for (std::size_t r = 0; r < picture.runs.size(); ++r) {
    const auto& run = picture.runs[r];
    const double middle = top + kRowHeight * (static_cast<double>(r) + 0.5);
    canvas.text({left - 10, middle + 4}, fitting(run.label, label_width), {12, kInk, Anchor::end});
    const auto end_of = [&](double speed) { return left + speed / fastest * (kBarRight - left); };
    if (!std::isfinite(run.speed) || fastest <= 0) {
      canvas.polyline(std::vector<Point>{{left, middle - 7}, {left, middle + 7}}, {run_color(r), 3});
      continue;
    }
    canvas.rectangle({left, middle - 8}, {end_of(run.speed), middle + 8}, run_color(r));
    double end = end_of(run.speed);
    if (std::isfinite(run.low) && std::isfinite(run.high) && run.high > run.low) {
      canvas.polyline(std::vector<Point>{{end_of(run.low), middle}, {end_of(run.high), middle}}, {kInk, 1.5});
      for (const double at : {run.low, run.high})
        canvas.polyline(std::vector<Point>{{end_of(at), middle - 4}, {end_of(at), middle + 4}}, {kInk, 1.5});
      end = std::max(end, end_of(run.high));
    }
    canvas.text({end + 8, middle + 4}, with_separators(std::llround(run.speed)), {12, kInk});
  }
}

/// True where one curve lies on most of the other within a hair's breadth, so that it would hide it.
bool hides(const Series& over, const Series& under, double hair) {
  std::size_t near = 0;
  for (auto a = over.begin(), b = under.begin(); a != over.end() && b != under.end();) {
    near += a->x == b->x && std::abs(a->y - b->y) <= hair;
    (a->x < b->x ? a : b) += 1;
  }
  return near >= kFewestHidden &&
         static_cast<double>(near) >= 0.8 * static_cast<double>(std::min(over.size(), under.size()));
}

}  // namespace

Color run_color(std::size_t run) { return kRunColors[run % kRunColors.size()]; }

std::vector<Dash> dashes_of(const RunsPicture& picture) {
  std::vector<Series> curves;
  Series all;
  for (const auto& run : picture.runs) {
    curves.push_back(without_gaps(make_series(run.x, run.loss, run.label.c_str())));
    all.insert(all.end(), curves.back().begin(), curves.back().end());
  }
  std::vector<Dash> dashes(curves.size());
  if (all.empty()) return dashes;
  const auto [low, high] = std::ranges::minmax(all, {}, &Point::y);
  std::vector<std::size_t> first(curves.size());  // the curve that each lies on; itself for none
  for (std::size_t r = 0; r < curves.size(); ++r) {
    first[r] = r;
    for (std::size_t q = 0; q < r && first[r] == r; ++q)
      if (first[q] == q && hides(curves[r], curves[q], (high.y - low.y) / 250)) first[r] = q;
  }
  for (std::size_t r = 0; r < curves.size(); ++r) {
    if (first[r] == r) continue;
    const auto sharing = static_cast<double>(std::ranges::count(first, first[r]));
    const auto place = static_cast<double>(std::count(first.begin(), iterator_at(first, r), first[r]));
    dashes[r] = {.on = kDash, .off = kDash * (sharing - 1), .offset = kDash * (sharing - place)};
  }
  return dashes;
}

std::string loss_curve_svg(const LossCurve& curve) {
  Canvas canvas(kFigureWidth, kFigureHeight);
  draw(canvas, curve);
  return canvas.document();
}

std::string runs_picture_svg(const RunsPicture& picture) {
  const auto title = wrapped(picture.title, kPictureWidth - 2 * kLossLeft, kTitleSize);
  const double top = 36 + kTitleLine * static_cast<double>(title.size()) + 16;
  const auto runs = static_cast<double>(picture.runs.size());
  const double height = top + std::max(kPlotHeight + kBelowPlot + kLegendLine * runs, kRowHeight * runs) + 24;
  Canvas canvas(kPictureWidth, static_cast<int>(height));
  canvas.rectangle({0, 0}, {kPictureWidth, height}, kPaper);
  for (std::size_t i = 0; i < title.size(); ++i)
    canvas.text({kLossLeft, 36 + kTitleLine * static_cast<double>(i)}, title[i],
                {kTitleSize, kInk, Anchor::start, true});
  draw_losses(canvas, picture, top);
  draw_speeds(canvas, picture, top);
  return canvas.document();
}

}  // namespace fsdp
