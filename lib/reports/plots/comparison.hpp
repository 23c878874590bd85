#pragma once
// A chart of several training runs: their losses and speeds.
#include <string>
#include <vector>

namespace fsdp {

struct RunsPicture {
  struct Run {
    std::string label;
    std::vector<double> x, loss;          ///< of equal length, x ascending; points that are not finite are gaps
    double speed = 0, low = 0, high = 0;  ///< tokens per second, and the ends of its spread; NaN for none
  };
  std::string title;
  std::string x_name;  ///< name of the x axis of the losses: "step" or "tokens"
  std::vector<Run> runs;
};

/// Draws losses as lines on the left, speeds as bars with their spread on the right. Eight colors are used, then
/// repeated with thinner lines. \throws std::invalid_argument when `loss` and `x` differ in length
std::string runs_picture_svg(const RunsPicture& picture);

/// Draws the chart as the bytes of a PNG file; non-ASCII characters become '?'.
std::string runs_picture_png(const RunsPicture& picture);

}  // namespace fsdp
