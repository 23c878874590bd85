#include "lib/reports/plots/svg_canvas.hpp"

#include <fmt/format.h>

namespace fsdp {
namespace {

std::string hex(Color color) { return fmt::format("#{:02x}{:02x}{:02x}", color.red, color.green, color.blue); }

/// A tenth of a pixel is as fine as anyone sees: "12.3", "12".
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
        // XML knows no control characters at all, not even escaped.
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

}  // namespace fsdp
