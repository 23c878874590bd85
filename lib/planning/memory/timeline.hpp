#pragma once
// Draws the memory of a training step: bytes by category, stacked, over the step's phases.
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

struct MemoryTimeline {
  std::string title;
  std::string subtitle;             ///< may be empty
  std::vector<std::string> layers;  ///< names of the stacked categories, lowest first; at most 12
  struct Phase {
    std::string name;
    std::vector<double> bytes;  ///< one per layer
  };
  std::vector<Phase> phases;  ///< in order of time
  double limit_bytes = 0;     ///< drawn as a horizontal limit line; 0: none
  std::string limit_name;
};

/// \return the timeline as an SVG document
/// \throws std::invalid_argument when a phase does not have a number for each layer, or there are too many layers
std::string memory_timeline_svg(const MemoryTimeline& timeline);

}  // namespace fsdp
