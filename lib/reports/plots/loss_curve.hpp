#pragma once
// The picture of a training run: loss over steps.
#include <string>
#include <vector>

namespace fsdp {

/// The losses on one set of validation data.
struct ValidationCurve {
  std::string name;          ///< "" where there is only one and it was given none
  std::vector<double> step;  ///< ascending
  std::vector<double> loss;  ///< one per step
};

/// What a run logged. Points that are not finite are left out; the line has a gap there.
struct LossCurve {
  std::string title;
  std::string subtitle;            ///< may be empty
  std::vector<double> step;        ///< ascending
  std::vector<double> train_loss;  ///< one per step
  std::vector<ValidationCurve> validation;
};

/// The curve as an SVG document. Training loss is a thin line and, from 20 points on, its moving average over
/// a thirtieth of the points; validation loss is points with their values, of several sets in a colour for each.
/// \throws std::invalid_argument when losses and steps are not equally many
std::string loss_curve_svg(const LossCurve& curve);

/// The same picture as the bytes of a PNG file, 1800 x 1080 pixels; text outside ASCII becomes '?'.
std::string loss_curve_png(const LossCurve& curve);

}  // namespace fsdp
