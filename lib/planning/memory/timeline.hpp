#pragma once
// The picture of a training step's memory: what it is for, stacked, over the step's phases.
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

struct MemoryTimeline {
  std::string title;
  std::string subtitle;             ///< may be empty
  std::vector<std::string> layers;  ///< what memory is for, lowest first; at most 12
  struct Phase {
    std::string name;
    std::vector<double> bytes;  ///< one per layer
  };
  std::vector<Phase> phases;  ///< in order
  double limit_bytes = 0;     ///< a line that must not be crossed; 0: none
  std::string limit_name;
};

/// The timeline as an SVG document.
/// \throws std::invalid_argument when a phase does not have a number for each layer, or there are too many layers
std::string memory_timeline_svg(const MemoryTimeline& timeline);

/// The same picture as the bytes of a PNG file, 1800 x 1080 pixels; text outside ASCII becomes '?'.
std::string memory_timeline_png(const MemoryTimeline& timeline);

}  // namespace fsdp
