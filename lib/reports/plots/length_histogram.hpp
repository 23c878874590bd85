#pragma once
// How many documents have which length, as a picture.
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

struct LengthBar {
  std::string label;  ///< "1,024 to 2,047"
  std::int64_t documents = 0;
};

/// Draws bars from left to right, in CSS pixels. \return SVG
std::string draw_length_histogram(const std::string& title, const std::string& subtitle,
                                  const std::vector<LengthBar>& bars);

}  // namespace fsdp
