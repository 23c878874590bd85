#pragma once
// Drawing surfaces for charts. Coordinates are in CSS pixels, x to the right, y downwards.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
  bool halo = false;  ///< draw a white rim, so that the text is readable on top of lines
};

/// A picture. Each shape covers earlier ones.
class Canvas {
 public:
  Canvas() = default;
  Canvas(const Canvas&) = delete;
  Canvas& operator=(const Canvas&) = delete;
  virtual ~Canvas() = default;

  virtual void rectangle(Point top_left, Point bottom_right, Color fill) = 0;
  /// Draws a line with round joins and caps; one point gives a dot.
  virtual void polyline(std::span<const Point> points, Stroke stroke) = 0;
  /// Draws a filled circle with a white rim of one pixel.
  virtual void marker(Point center, double radius, Color fill) = 0;
  /// \param baseline  start, middle or end of the text, depending on the style's anchor
  virtual void text(Point baseline, std::string_view text, const TextStyle& style) = 0;
};

/// A canvas that writes SVG 1.1.
class SvgCanvas final : public Canvas {
 public:
  SvgCanvas(int width, int height);

  void rectangle(Point top_left, Point bottom_right, Color fill) override;
  void polyline(std::span<const Point> points, Stroke stroke) override;
  void marker(Point center, double radius, Color fill) override;
  void text(Point baseline, std::string_view text, const TextStyle& style) override;

  /// Returns the whole document.
  std::string document() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

// A small font for pictures without a font library: the shapes of the usual 5 x 7 dot-matrix characters, drawn as
// strokes between neighbouring dots, which is smooth at any size.

/// Returns the width of `text` at a font size; other UTF-8 characters than ASCII count as one '?'.
double stroke_text_width(std::string_view text, double size);

/// Returns the strokes of `text` from `start` on its baseline.
std::vector<std::pair<Point, Point>> stroke_text(std::string_view text, Point start, double size);

/// A canvas that draws antialiased pixels and encodes them as PNG.
class PngCanvas final : public Canvas {
 public:
  /// \param scale  pixels of the picture per unit of the coordinates
  PngCanvas(int width, int height, int scale);

  void rectangle(Point top_left, Point bottom_right, Color fill) override;
  void polyline(std::span<const Point> points, Stroke stroke) override;
  void marker(Point center, double radius, Color fill) override;
  void text(Point baseline, std::string_view text, const TextStyle& style) override;

  /// Returns the bytes of the file (8-bit RGB).
  std::string file() const;

 private:
  void segment(Point from, Point to, Stroke stroke);
  void blend(int x, int y, Color color, double coverage);

  int scale_, width_, height_;        ///< width and height in pixels of the picture
  std::vector<std::uint8_t> pixels_;  ///< [height_, width_, 3]
};

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
