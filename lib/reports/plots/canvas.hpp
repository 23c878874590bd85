#pragma once
// Charts as SVG. Coordinates are in CSS pixels, x to the right, y downwards.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

struct Color {
  std::uint8_t red, green, blue;
  std::string hex() const;  ///< "#1f62b4"
};

struct Point {
  double x, y;
};

/// Lengths of a dashed line in pixels; a line with `off` 0 is solid.
struct Dash {
  double on = 0, off = 0;
  double offset = 0;  ///< where in the pattern the line begins
};

struct Stroke {
  Color color;
  double width;
  Dash dash = {};
};

enum class Anchor { start, middle, end };

struct TextStyle {
  double size;  ///< font size
  Color color;
  Anchor anchor = Anchor::start;
  bool bold = false;
  bool halo = false;  ///< draw a white rim, so that the text is readable on top of lines
};

/// A picture as SVG 1.1, without what cairosvg or Inkscape read in another way. Each shape covers earlier ones.
class Canvas {
 public:
  Canvas(int width, int height);

  void rectangle(Point top_left, Point bottom_right, Color fill);
  /// Draws a line with round joins and caps; one point gives a dot.
  void polyline(std::span<const Point> points, Stroke stroke);
  /// Draws a filled circle with a white rim of one pixel.
  void marker(Point center, double radius, Color fill);
  /// \param baseline  start, middle or end of the text, depending on the style's anchor
  void text(Point baseline, std::string_view text, const TextStyle& style);

  /// Returns the whole document.
  std::string document() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

/// Returns an estimate of the width of `text`, which depends on the reader's fonts; wide ones (DejaVu Sans) are
/// assumed.
double text_width(std::string_view text, double size);

// Axes with round numbers.

/// A range of values and the ticks inside it.
struct Axis {
  double low, high;  ///< low < high
  double tick_step;  ///< 1, 2 or 5 times a power of ten
  std::vector<double> ticks;
};

enum class AxisKind {
  values,  ///< the bounds are moved outwards to the next tick
  steps    ///< the bounds stay, ticks are at whole numbers
};

/// Returns an axis that contains [low, high], both finite, with about `num_ticks` ticks; equal bounds are moved apart.
Axis make_axis(double low, double high, int num_ticks, AxisKind kind);

/// Formats `value` with as many decimals as ticks at `tick_step` need and thousands separators: "0.25", "12,000".
/// Numbers from a million on are shortened: "1.5M".
std::string tick_label(double value, double tick_step);

/// Formats a count: "1,234,567".
std::string with_separators(std::int64_t value);

}  // namespace fsdp
