#pragma once
// A chart of a training run: loss over steps.
#include <string>
#include <vector>

namespace fsdp {

/// The losses on one set of validation data.
struct ValidationCurve {
  std::string name;          ///< "" for a single set without a name
  std::vector<double> step;  ///< ascending
  std::vector<double> loss;  ///< one per step
};

/// The logged losses of a run. Points that are not finite are omitted and leave a gap in the line.
struct LossCurve {
  std::string title;
  std::string subtitle;            ///< may be empty
  std::vector<double> step;        ///< ascending
  std::vector<double> train_loss;  ///< one per step
  std::vector<ValidationCurve> validation;
};

/// Draws the curve as an SVG document. Training loss is a thin line and, from 20 points on, its moving average over a
/// thirtieth of the points; validation losses are points with their values, with a color for each set.
/// \throws std::invalid_argument when losses and steps differ in number
std::string loss_curve_svg(const LossCurve& curve);

/// Draws the chart as the bytes of a PNG file, 1800 x 1080 pixels; text outside ASCII becomes '?'.
std::string loss_curve_png(const LossCurve& curve);

// A chart of several training runs: their losses and speeds.

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
