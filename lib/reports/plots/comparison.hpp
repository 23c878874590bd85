#pragma once
// The picture of several training runs: their losses, and how fast they are.
#include <string>
#include <vector>

namespace fsdp {

struct RunsPicture {
  struct Run {
    std::string label;
    std::vector<double> x, loss;          ///< equally many, x ascending; points that are not finite are gaps
    double speed = 0, low = 0, high = 0;  ///< tokens per second and what is told as its spread; NaN: none
  };
  std::string title;
  std::string x_name;  ///< of the losses: "step", "tokens"
  std::vector<Run> runs;
};

/// Losses as lines on the left, speeds as bars with their spread on the right. Eight colors, which begin anew in
/// thinner lines. \throws std::invalid_argument when losses and their places are not equally many
std::string runs_picture_svg(const RunsPicture& picture);

/// The same as the bytes of a PNG file; text outside ASCII becomes '?'.
std::string runs_picture_png(const RunsPicture& picture);

}  // namespace fsdp
