#include "lib/reports/plots/png_canvas.hpp"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "lib/reports/plots/stroke_font.hpp"

namespace fsdp {
namespace {

constexpr Color kWhite{255, 255, 255};

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

/// Length, type, data and checksum of the type and the data (PNG specification, 5.3).
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
    throw std::bad_alloc();  // with a buffer of compressBound nothing else can fail
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

}  // namespace

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
    rows += '\0';  // filter: none
    rows.append(reinterpret_cast<const char*>(&pixels_[y * row_bytes]), row_bytes);
  }
  const std::string eight_bit_rgb{8, 2, 0, 0, 0};
  const auto size = big_endian(static_cast<std::uint32_t>(width_)) + big_endian(static_cast<std::uint32_t>(height_));
  return "\x89PNG\r\n\x1A\n" + chunk("IHDR", size + eight_bit_rgb) + chunk("IDAT", deflate_all(rows)) +
         chunk("IEND", "");
}

}  // namespace fsdp
