#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/reports/plots/canvas.hpp"

namespace fsdp {

/// A canvas that paints pixels, with smooth edges, and gives them as PNG.
class PngCanvas final : public Canvas {
 public:
  /// \param scale  pixels of the picture per unit of the coordinates
  PngCanvas(int width, int height, int scale);

  void rectangle(Point top_left, Point bottom_right, Color fill) override;
  void polyline(std::span<const Point> points, Stroke stroke) override;
  void marker(Point center, double radius, Color fill) override;
  void text(Point baseline, std::string_view text, const TextStyle& style) override;

  /// The bytes of the file (8-bit RGB).
  std::string file() const;

 private:
  void segment(Point from, Point to, Stroke stroke);
  void blend(int x, int y, Color color, double coverage);

  int scale_, width_, height_;        ///< the last two in pixels of the picture
  std::vector<std::uint8_t> pixels_;  ///< [height_, width_, 3]
};

}  // namespace fsdp
