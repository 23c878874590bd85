#pragma once
// The look that all figures share: size, margins and colors.
#include "lib/reports/plots/canvas.hpp"

namespace fsdp {

inline constexpr int kFigureWidth = 900;
inline constexpr int kFigureHeight = 540;
inline constexpr Point kBottomRight{872, 484};  ///< corner of the plot area

inline constexpr Color kPaper{255, 255, 255};
inline constexpr Color kInk{32, 38, 46};
inline constexpr Color kFaintInk{96, 106, 118};
inline constexpr Color kGrid{228, 232, 237};
inline constexpr Color kAxisLine{150, 158, 168};

}  // namespace fsdp
