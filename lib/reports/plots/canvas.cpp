#include "lib/reports/plots/canvas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "lib/base/text/text_format.hpp"

namespace fsdp {
namespace {

/// Formats a coordinate to a tenth of a pixel: "12.3", "12".
std::string number(double value) {
  auto text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

/// XML allows neither control characters, not even escaped ones, nor bytes that are not UTF-8.
std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : printable(text)) {
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
        escaped += c == '\n' || c == '\t' ? ' ' : c;
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

std::string Color::hex() const { return fmt::format("#{:02x}{:02x}{:02x}", red, green, blue); }

Canvas::Canvas(int width, int height)
    : body_(fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
                        "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\">\n",
                        width, height)) {}

void Canvas::rectangle(Point top_left, Point bottom_right, Color fill) {
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", number(top_left.x),
                       number(top_left.y), number(bottom_right.x - top_left.x), number(bottom_right.y - top_left.y),
                       fill.hex());
}

void Canvas::polyline(std::span<const Point> points, Stroke stroke) {
  if (points.empty()) return;
  body_ += "<path d=\"";
  char command = 'M';
  for (const Point& point : points) {
    body_ += command + number(point.x) + " " + number(point.y);
    command = 'L';
  }
  if (points.size() == 1) body_ += "h0";
  const auto& dash = stroke.dash;
  const bool is_solid = dash.off <= 0 || points.size() == 1;
  body_ += fmt::format("\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"",
                       stroke.color.hex(), number(stroke.width));
  body_ += is_solid ? " stroke-linecap=\"round\"/>\n"
                    : fmt::format(" stroke-dasharray=\"{} {}\" stroke-dashoffset=\"{}\"/>\n", number(dash.on),
                                  number(dash.off), number(dash.offset));
}

void Canvas::marker(Point center, double radius, Color fill) {
  body_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\" stroke=\"#ffffff\"/>\n", number(center.x),
                       number(center.y), number(radius), fill.hex());
}

void Canvas::text(Point baseline, std::string_view text, const TextStyle& style) {
  if (text.empty()) return;
  auto begin = fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\"", number(baseline.x), number(baseline.y),
                           number(style.size));
  if (style.anchor != Anchor::start) begin += fmt::format(" text-anchor=\"{}\"", anchor_name(style.anchor));
  if (style.bold) begin += " font-weight=\"bold\"";
  const auto end = ">" + escape(text) + "</text>\n";
  // A text of its own, because not every reader knows paint-order: others draw the rim over the letters.
  if (style.halo) body_ += begin + R"( fill="#ffffff" stroke="#ffffff" stroke-width="3" aria-hidden="true")" + end;
  body_ += begin + fmt::format(" fill=\"{}\"", style.color.hex()) + end;
}

double text_width(std::string_view text, double size) {
  const auto is_first_byte = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
  return 0.62 * size * static_cast<double>(std::ranges::count_if(text, is_first_byte));
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
