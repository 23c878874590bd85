#pragma once
// What a chart draws on. Coordinates are in CSS pixels, x to the right, y downwards.
#include <cstdint>
#include <span>
#include <string_view>

namespace fsdp {

struct Color {
  std::uint8_t red, green, blue;
};

struct Point {
  double x, y;
};

struct Stroke {
  Color color;
  double width;
};

enum class Anchor { start, middle, end };

struct TextStyle {
  double size;  ///< font size
  Color color;
  Anchor anchor = Anchor::start;
  bool bold = false;
  bool halo = false;  ///< a white rim, to be read on top of lines
};

/// One picture; each shape covers those before it.
class Canvas {
 public:
  Canvas() = default;
  Canvas(const Canvas&) = delete;
  Canvas& operator=(const Canvas&) = delete;
  virtual ~Canvas() = default;

  virtual void rectangle(Point top_left, Point bottom_right, Color fill) = 0;
  /// Round joins and caps; one point gives a dot.
  virtual void polyline(std::span<const Point> points, Stroke stroke) = 0;
  /// Filled, with a white rim of one pixel.
  virtual void marker(Point center, double radius, Color fill) = 0;
  /// \param baseline  where the text starts, has its middle or ends, by the style's anchor
  virtual void text(Point baseline, std::string_view text, const TextStyle& style) = 0;
};

}  // namespace fsdp
