#pragma once
#include <string>

#include "lib/reports/plots/canvas.hpp"

namespace fsdp {

/// A canvas that writes SVG 1.1.
class SvgCanvas final : public Canvas {
 public:
  SvgCanvas(int width, int height);

  void rectangle(Point top_left, Point bottom_right, Color fill) override;
  void polyline(std::span<const Point> points, Stroke stroke) override;
  void marker(Point center, double radius, Color fill) override;
  void text(Point baseline, std::string_view text, const TextStyle& style) override;

  /// The whole document.
  std::string document() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

}  // namespace fsdp
