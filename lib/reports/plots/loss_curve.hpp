#pragma once
// A chart of a training run: loss over steps.
#include <array>
#include <string>
#include <vector>

#include "lib/reports/plots/canvas.hpp"

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

// A chart of several training runs: their losses and speeds.

struct RunsPicture {
  struct Run {
    std::string label;
    std::vector<double> x, loss;          ///< of equal length, x ascending; points that are not finite are gaps
    std::vector<double> val_x, val_loss;  ///< likewise: losses on validation data
    double speed = 0, low = 0, high = 0;  ///< tokens per second, and the ends of its spread; NaN for none
  };
  std::string title;
  std::string x_name;  ///< name of the x axis of the losses: "step" or "tokens"
  std::vector<Run> runs;
};

/// Ten colors, then the same again: pairwise at least 0.13 apart in OKLab as people without red or green cones see them
/// (0.10 without blue ones), by the matrices of Machado et al. 2009, and 2.2 : 1 or more against white.
inline constexpr std::array<Color, 10> kRunColors{{{0x1f, 0x62, 0xb4},
                                                   {0xd1, 0x54, 0x18},
                                                   {0xc9, 0xaa, 0x13},
                                                   {0x40, 0xb8, 0xff},
                                                   {0xa6, 0x25, 0x67},
                                                   {0x84, 0x74, 0xff},
                                                   {0x45, 0x47, 0x00},
                                                   {0xfc, 0x75, 0xa5},
                                                   {0x19, 0x02, 0x8f},
                                                   {0x50, 0x0e, 0x43}}};
Color run_color(std::size_t run);

/// The dashes of each run's line. Runs with the same losses (other ways to shard, for example) hide each other: the
/// first one is solid, the others are dashed so that each shows a part. \throws as runs_picture_svg()
std::vector<Dash> dashes_of(const RunsPicture& picture);

/// Draws losses on the left (training as lines, validation as points), with a legend below; speeds as bars with their
/// spread on the right. A long title is wrapped. \throws std::invalid_argument when losses and places differ in number
std::string runs_picture_svg(const RunsPicture& picture);

}  // namespace fsdp
