#include "lib/reports/plots/length_histogram.hpp"

#include <algorithm>
#include <cmath>

#include "lib/reports/plots/canvas.hpp"
#include "lib/reports/plots/figure.hpp"

namespace fsdp {

std::string draw_length_histogram(const std::string& title, const std::string& subtitle,
                                  const std::vector<LengthBar>& bars) {
  constexpr Point kPlotBegin{92, 96};
  constexpr Color kBar{31, 98, 180};
  std::int64_t most = 1;
  for (const auto& bar : bars) most = std::max(most, bar.documents);
  const auto axis = make_axis(0, static_cast<double>(most), 6, AxisKind::values);
  const auto y_of = [&](double value) {
    return kBottomRight.y - (value - axis.low) / (axis.high - axis.low) * (kBottomRight.y - kPlotBegin.y);
  };
  Canvas canvas(kFigureWidth, kFigureHeight);
  canvas.rectangle({0, 0}, {kFigureWidth, kFigureHeight}, kPaper);
  canvas.text({kPlotBegin.x, 34}, title, {18, kInk, Anchor::start, true});
  canvas.text({kPlotBegin.x, 56}, subtitle, {13, kFaintInk});
  TextStyle left{12, kFaintInk, Anchor::end}, below{11, kFaintInk, Anchor::middle};
  for (const double tick : axis.ticks) {
    const double y = std::round(y_of(tick)) + 0.5;
    canvas.polyline(std::vector<Point>{{kPlotBegin.x, y}, {kBottomRight.x, y}}, {kGrid, 1});
    canvas.text({kPlotBegin.x - 10, y + 4}, tick_label(tick, axis.tick_step), left);
  }
  canvas.text({kPlotBegin.x - 10, kPlotBegin.y - 14}, "documents", left);
  const auto step = (kBottomRight.x - kPlotBegin.x) / static_cast<double>(std::max<std::size_t>(1, bars.size()));
  double free_from = 0;
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double x = kPlotBegin.x + step * static_cast<double>(i);
    const auto& [label, documents] = bars[i];
    if (documents > 0) {  // at least a line
      const double top = std::min(y_of(static_cast<double>(documents)), kBottomRight.y - 1);
      canvas.rectangle({x + 0.1 * step, top}, {x + 0.9 * step, kBottomRight.y}, kBar);
    }
    const double middle = x + step / 2, half = text_width(label, below.size) / 2;
    if (middle - half < free_from) continue;
    canvas.text({middle, kBottomRight.y + 20}, label, below);
    free_from = middle + half + 6;
  }
  canvas.polyline(std::vector<Point>{{kPlotBegin.x, kBottomRight.y}, kBottomRight}, {kAxisLine, 1});
  canvas.text({(kPlotBegin.x + kBottomRight.x) / 2, kBottomRight.y + 44}, "ids of a document", below);
  return canvas.document();
}

}  // namespace fsdp
