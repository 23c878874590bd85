#pragma once
// A small font for pictures without a font library: the shapes of the usual 5 x 7 dot-matrix characters, drawn as
// strokes between neighbouring dots, which is smooth at any size.
#include <string_view>
#include <utility>
#include <vector>

#include "lib/reports/plots/canvas.hpp"

namespace fsdp {

/// Width of `text` (ASCII; other bytes of UTF-8 count as one '?' per character) at a font size.
double stroke_text_width(std::string_view text, double size);

/// The strokes of `text` from `start` on its baseline.
std::vector<std::pair<Point, Point>> stroke_text(std::string_view text, Point start, double size);

}  // namespace fsdp
