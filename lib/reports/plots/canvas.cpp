#include "lib/reports/plots/canvas.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace fsdp {
namespace {

std::string hex(Color color) { return fmt::format("#{:02x}{:02x}{:02x}", color.red, color.green, color.blue); }

/// Formats a coordinate to a tenth of a pixel: "12.3", "12".
std::string number(double value) {
  auto text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      default:
        // XML does not allow control characters, not even escaped ones.
        escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return escaped;
}

std::string_view anchor_name(Anchor anchor) {
  switch (anchor) {
    case Anchor::middle:
      return "middle";
    case Anchor::end:
      return "end";
    default:
      return "start";
  }
}

constexpr int kColumns = 5;
constexpr int kRows = 8;     // row 8 is below the baseline
constexpr int kAdvance = 6;  // distance between characters, in dots
constexpr int kBaseline = 6;

using Glyph = std::array<std::uint8_t, kColumns>;  // one byte per column, lowest bit at the top

// clang-format off
constexpr std::array<Glyph, 95> kGlyphs{{
    {0x00,0x00,0x00,0x00,0x00}, {0x00,0x00,0x5F,0x00,0x00}, {0x00,0x07,0x00,0x07,0x00}, {0x14,0x7F,0x14,0x7F,0x14},  // space ! " #
    {0x24,0x2A,0x7F,0x2A,0x12}, {0x23,0x13,0x08,0x64,0x62}, {0x36,0x49,0x56,0x20,0x50}, {0x00,0x00,0x07,0x00,0x00},  // $ % & '
    {0x00,0x1C,0x22,0x41,0x00}, {0x00,0x41,0x22,0x1C,0x00}, {0x2A,0x1C,0x7F,0x1C,0x2A}, {0x08,0x08,0x3E,0x08,0x08},  // ( ) * +
    {0x00,0x80,0x60,0x00,0x00}, {0x08,0x08,0x08,0x08,0x08}, {0x00,0x00,0x40,0x00,0x00}, {0x20,0x10,0x08,0x04,0x02},  // , - . /
    {0x3E,0x41,0x41,0x41,0x3E}, {0x00,0x42,0x7F,0x40,0x00}, {0x62,0x51,0x49,0x49,0x46}, {0x22,0x41,0x49,0x49,0x36},  // 0 1 2 3
    {0x18,0x14,0x12,0x7F,0x10}, {0x27,0x45,0x45,0x45,0x39}, {0x3C,0x4A,0x49,0x49,0x30}, {0x01,0x61,0x19,0x05,0x03},  // 4 5 6 7
    {0x36,0x49,0x49,0x49,0x36}, {0x06,0x49,0x49,0x29,0x1E}, {0x00,0x00,0x14,0x00,0x00}, {0x00,0x40,0x34,0x00,0x00},  // 8 9 : ;
    {0x00,0x08,0x14,0x22,0x41}, {0x14,0x14,0x14,0x14,0x14}, {0x00,0x41,0x22,0x14,0x08}, {0x02,0x01,0x59,0x09,0x06},  // < = > ?
    {0x3E,0x41,0x5D,0x59,0x4E}, {0x7C,0x12,0x11,0x12,0x7C}, {0x7F,0x49,0x49,0x49,0x36}, {0x3E,0x41,0x41,0x41,0x22},  // @ A B C
    {0x7F,0x41,0x41,0x41,0x3E}, {0x7F,0x49,0x49,0x49,0x41}, {0x7F,0x09,0x09,0x09,0x01}, {0x3E,0x41,0x49,0x49,0x3A},  // D E F G
    {0x7F,0x08,0x08,0x08,0x7F}, {0x00,0x41,0x7F,0x41,0x00}, {0x20,0x40,0x41,0x3F,0x01}, {0x7F,0x08,0x14,0x22,0x41},  // H I J K
    {0x7F,0x40,0x40,0x40,0x40}, {0x7F,0x02,0x0C,0x02,0x7F}, {0x7F,0x04,0x08,0x10,0x7F}, {0x3E,0x41,0x41,0x41,0x3E},  // L M N O
    {0x7F,0x09,0x09,0x09,0x06}, {0x3E,0x41,0x51,0x21,0x5E}, {0x7F,0x09,0x19,0x29,0x46}, {0x26,0x49,0x49,0x49,0x32},  // P Q R S
    {0x01,0x01,0x7F,0x01,0x01}, {0x3F,0x40,0x40,0x40,0x3F}, {0x1F,0x20,0x40,0x20,0x1F}, {0x3F,0x40,0x38,0x40,0x3F},  // T U V W
    {0x63,0x14,0x08,0x14,0x63}, {0x03,0x04,0x78,0x04,0x03}, {0x61,0x51,0x49,0x45,0x43}, {0x00,0x7F,0x41,0x41,0x00},  // X Y Z [
    {0x02,0x04,0x08,0x10,0x20}, {0x00,0x41,0x41,0x7F,0x00}, {0x04,0x02,0x01,0x02,0x04}, {0x80,0x80,0x80,0x80,0x80},  // \ ] ^ _
    {0x00,0x01,0x02,0x04,0x00}, {0x20,0x54,0x54,0x54,0x78}, {0x7F,0x44,0x44,0x44,0x38}, {0x38,0x44,0x44,0x44,0x28},  // ` a b c
    {0x38,0x44,0x44,0x44,0x7F}, {0x38,0x54,0x54,0x54,0x18}, {0x00,0x04,0x7E,0x05,0x01}, {0x18,0xA4,0xA4,0xA4,0x7C},  // d e f g
    {0x7F,0x04,0x04,0x04,0x78}, {0x00,0x44,0x7D,0x40,0x00}, {0x40,0x80,0x84,0x7D,0x00}, {0x7F,0x10,0x28,0x44,0x00},  // h i j k
    {0x00,0x41,0x7F,0x40,0x00}, {0x7C,0x04,0x78,0x04,0x78}, {0x7C,0x08,0x04,0x04,0x78}, {0x38,0x44,0x44,0x44,0x38},  // l m n o
    {0xFC,0x24,0x24,0x24,0x18}, {0x18,0x24,0x24,0x24,0xFC}, {0x7C,0x08,0x04,0x04,0x08}, {0x48,0x54,0x54,0x54,0x24},  // p q r s
    {0x04,0x3F,0x44,0x40,0x20}, {0x3C,0x40,0x40,0x20,0x7C}, {0x1C,0x20,0x40,0x20,0x1C}, {0x3C,0x40,0x30,0x40,0x3C},  // t u v w
    {0x44,0x28,0x10,0x28,0x44}, {0x1C,0xA0,0xA0,0xA0,0x7C}, {0x44,0x64,0x54,0x4C,0x44}, {0x00,0x08,0x36,0x41,0x00},  // x y z {
    {0x00,0x00,0x7F,0x00,0x00}, {0x00,0x41,0x36,0x08,0x00}, {0x04,0x02,0x04,0x08,0x04},                              // | } ~
}};
// clang-format on

/// Converts to one byte per character, with '?' for characters that are not printable ASCII.
std::string ascii(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 && byte < 0xC0) continue;  // continuation byte of UTF-8
    result += byte >= 0x20 && byte < 0x7F ? c : '?';
  }
  return result;
}

bool is_lit(const Glyph& glyph, int column, int row) {
  if (column < 0 || column >= kColumns || row < 0 || row >= kRows) return false;
  return (glyph[static_cast<std::size_t>(column)] >> row & 1) != 0;
}

double dot_size(double size) { return size * 0.105; }  // a capital letter is 7 dots high

constexpr Color kWhite{255, 255, 255};

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

/// Formats a PNG chunk: length, type, data, and the checksum of type and data (PNG specification, 5.3).
std::string chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const auto* bytes = reinterpret_cast<const Bytef*>(body.data());
  const auto checksum = static_cast<std::uint32_t>(crc32(0, bytes, static_cast<uInt>(body.size())));
  return big_endian(static_cast<std::uint32_t>(data.size())) + body + big_endian(checksum);
}

std::string deflate_all(const std::string& data) {
  uLongf size = compressBound(data.size());
  std::string packed(size, '\0');
  const auto* source = reinterpret_cast<const Bytef*>(data.data());
  if (compress2(reinterpret_cast<Bytef*>(packed.data()), &size, source, data.size(), 9) != Z_OK) {
    // with a buffer of compressBound() bytes, running out of memory is the only possible failure
    throw std::bad_alloc();
  }
  packed.resize(size);
  return packed;
}

double distance_to_segment(Point p, Point from, Point to) {
  const double dx = to.x - from.x, dy = to.y - from.y;
  const double length_squared = dx * dx + dy * dy;
  double along = length_squared > 0 ? ((p.x - from.x) * dx + (p.y - from.y) * dy) / length_squared : 0;
  along = std::clamp(along, 0.0, 1.0);
  return std::hypot(p.x - from.x - along * dx, p.y - from.y - along * dy);
}

double nice_step(double rough) {
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double digit = rough / power;
  if (digit < 1.5) return power;
  if (digit < 3.5) return 2 * power;
  if (digit < 7.5) return 5 * power;
  return 10 * power;
}

int decimals_of(double step) { return std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9))); }

}  // namespace

SvgCanvas::SvgCanvas(int width, int height)
    : body_(fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
                        "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\">\n",
                        width, height)) {}

void SvgCanvas::rectangle(Point top_left, Point bottom_right, Color fill) {
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", number(top_left.x),
                       number(top_left.y), number(bottom_right.x - top_left.x), number(bottom_right.y - top_left.y),
                       hex(fill));
}

void SvgCanvas::polyline(std::span<const Point> points, Stroke stroke) {
  if (points.empty()) return;
  body_ += "<path d=\"";
  char command = 'M';
  for (const Point& point : points) {
    body_ += command + number(point.x) + " " + number(point.y);
    command = 'L';
  }
  if (points.size() == 1) body_ += "h0";
  body_ += fmt::format(
      "\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\" stroke-linecap=\"round\"/>\n",
      hex(stroke.color), number(stroke.width));
}

void SvgCanvas::marker(Point center, double radius, Color fill) {
  body_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\" stroke=\"#ffffff\"/>\n", number(center.x),
                       number(center.y), number(radius), hex(fill));
}

void SvgCanvas::text(Point baseline, std::string_view text, const TextStyle& style) {
  if (text.empty()) return;
  body_ += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{}\"", number(baseline.x), number(baseline.y),
                       number(style.size), hex(style.color));
  if (style.anchor != Anchor::start) body_ += fmt::format(" text-anchor=\"{}\"", anchor_name(style.anchor));
  if (style.bold) body_ += " font-weight=\"bold\"";
  if (style.halo) body_ += " stroke=\"#ffffff\" stroke-width=\"3\" stroke-linejoin=\"round\" paint-order=\"stroke\"";
  body_ += ">" + escape(text) + "</text>\n";
}

double stroke_text_width(std::string_view text, double size) {
  const auto characters = static_cast<double>(ascii(text).size());
  return characters == 0 ? 0 : (characters * kAdvance - 1) * dot_size(size);
}

std::vector<std::pair<Point, Point>> stroke_text(std::string_view text, Point start, double size) {
  std::vector<std::pair<Point, Point>> strokes;
  const double dot = dot_size(size);
  for (const char c : ascii(text)) {
    const Glyph& glyph = kGlyphs[static_cast<std::size_t>(c - ' ')];
    const auto at = [&](int column, int row) {
      return Point{start.x + column * dot, start.y + (row - kBaseline) * dot};
    };
    for (int column = 0; column < kColumns; ++column) {
      for (int row = 0; row < kRows; ++row) {
        if (!is_lit(glyph, column, row)) continue;
        const Point here = at(column, row);
        const bool right = is_lit(glyph, column + 1, row), down = is_lit(glyph, column, row + 1);
        const bool up = is_lit(glyph, column, row - 1);
        strokes.push_back({here, here});
        if (right) strokes.push_back({here, at(column + 1, row)});
        if (down) strokes.push_back({here, at(column, row + 1)});
        // Connects diagonal dots only if no neighbouring dot connects them already.
        if (is_lit(glyph, column + 1, row + 1) && !right && !down) strokes.push_back({here, at(column + 1, row + 1)});
        if (is_lit(glyph, column + 1, row - 1) && !right && !up) strokes.push_back({here, at(column + 1, row - 1)});
      }
    }
    start.x += kAdvance * dot;
  }
  return strokes;
}

PngCanvas::PngCanvas(int width, int height, int scale)
    : scale_(scale),
      width_(width * scale),
      height_(height * scale),
      pixels_(static_cast<std::size_t>(width_) * static_cast<std::size_t>(height_) * 3, 255) {}

void PngCanvas::rectangle(Point top_left, Point bottom_right, Color fill) {
  const auto pixel = [&](double value) { return static_cast<int>(std::lround(value * scale_)); };
  for (int y = pixel(top_left.y); y < pixel(bottom_right.y); ++y) {
    for (int x = pixel(top_left.x); x < pixel(bottom_right.x); ++x) blend(x, y, fill, 1);
  }
}

void PngCanvas::polyline(std::span<const Point> points, Stroke stroke) {
  if (points.size() == 1) segment(points[0], points[0], stroke);
  for (std::size_t i = 1; i < points.size(); ++i) segment(points[i - 1], points[i], stroke);
}

void PngCanvas::marker(Point center, double radius, Color fill) {
  segment(center, center, {kWhite, 2 * radius + 1});
  segment(center, center, {fill, 2 * radius - 1});
}

void PngCanvas::text(Point baseline, std::string_view text, const TextStyle& style) {
  const double width = stroke_text_width(text, style.size);
  if (style.anchor == Anchor::middle) baseline.x -= width / 2;
  if (style.anchor == Anchor::end) baseline.x -= width;
  const auto strokes = stroke_text(text, baseline, style.size);
  const double pen = style.size * (style.bold ? 0.13 : 0.085);
  if (style.halo) {
    for (const auto& [from, to] : strokes) segment(from, to, {kWhite, pen + 3});
  }
  for (const auto& [from, to] : strokes) segment(from, to, {style.color, pen});
}

void PngCanvas::segment(Point from, Point to, Stroke stroke) {
  from = {from.x * scale_, from.y * scale_};
  to = {to.x * scale_, to.y * scale_};
  const double half_width = stroke.width * scale_ / 2;
  const auto low = [&](double a, double b) { return static_cast<int>(std::floor(std::min(a, b) - half_width - 1)); };
  const auto high = [&](double a, double b) { return static_cast<int>(std::ceil(std::max(a, b) + half_width + 1)); };
  for (int y = low(from.y, to.y); y <= high(from.y, to.y); ++y) {
    for (int x = low(from.x, to.x); x <= high(from.x, to.x); ++x) {
      const double distance = distance_to_segment({x + 0.5, y + 0.5}, from, to);
      blend(x, y, stroke.color, std::clamp(half_width + 0.5 - distance, 0.0, 1.0));
    }
  }
}

void PngCanvas::blend(int x, int y, Color color, double coverage) {
  if (x < 0 || x >= width_ || y < 0 || y >= height_ || coverage <= 0) return;
  auto* pixel =
      &pixels_[(static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(x)) * 3];
  const auto mix = [&](std::uint8_t& below, std::uint8_t above) {
    below = static_cast<std::uint8_t>(std::lround(below + (above - below) * coverage));
  };
  mix(pixel[0], color.red);
  mix(pixel[1], color.green);
  mix(pixel[2], color.blue);
}

std::string PngCanvas::file() const {
  const auto row_bytes = static_cast<std::size_t>(width_) * 3;
  std::string rows;
  rows.reserve((row_bytes + 1) * static_cast<std::size_t>(height_));
  for (std::size_t y = 0; y < static_cast<std::size_t>(height_); ++y) {
    rows += '\0';  // filter type: none
    rows.append(reinterpret_cast<const char*>(&pixels_[y * row_bytes]), row_bytes);
  }
  const std::string eight_bit_rgb{8, 2, 0, 0, 0};
  const auto size = big_endian(static_cast<std::uint32_t>(width_)) + big_endian(static_cast<std::uint32_t>(height_));
  return "\x89PNG\r\n\x1A\n" + chunk("IHDR", size + eight_bit_rgb) + chunk("IDAT", deflate_all(rows)) +
         chunk("IEND", "");
}

Axis make_axis(double low, double high, int num_ticks, AxisKind kind) {
  if (!(high - low > 1e-9 * std::max(std::abs(low), std::abs(high)))) {
    const double room = std::max(kind == AxisKind::steps ? 1.0 : 0.5, std::abs(low) * 0.1);
    low -= room;
    high += room;
  }
  Axis axis{low, high, nice_step((high - low) / num_ticks), {}};
  if (kind == AxisKind::steps) {
    axis.tick_step = std::max(1.0, axis.tick_step);
  } else {
    axis.low = std::floor(low / axis.tick_step + 1e-9) * axis.tick_step;
    axis.high = std::ceil(high / axis.tick_step - 1e-9) * axis.tick_step;
  }
  const double first = std::ceil(axis.low / axis.tick_step - 1e-9);
  const double last = std::floor(axis.high / axis.tick_step + 1e-9);
  for (double i = first; i <= last; ++i) axis.ticks.push_back(i * axis.tick_step);
  return axis;
}

std::string with_separators(std::int64_t value) {
  auto digits = std::to_string(value);
  const std::size_t sign = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > sign + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string tick_label(double value, double tick_step) {
  if (std::abs(value) < tick_step * 1e-6) return "0";
  if (std::abs(value) >= 1e12) return fmt::format("{:g}", value);
  if (tick_step >= 1e5) return fmt::format("{:g}M", value / 1e6);
  if (tick_step >= 1) return with_separators(std::llround(value));
  return fmt::format("{:.{}f}", value, decimals_of(tick_step));
}

}  // namespace fsdp
