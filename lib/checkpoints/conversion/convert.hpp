#pragma once
// Carries out a conversion: plans it, before any tensor is read, and writes it.
#include <filesystem>
#include <functional>
#include <memory>

#include "lib/base/messages/ignored.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/checkpoints/programs/conversion_request.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/target/copy.hpp"
#include "lib/checkpoints/target/layout.hpp"
#include "lib/checkpoints/transform/tracked_source.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct ConversionPlan {
  std::shared_ptr<const TrackedSource> input;  ///< as stored
  std::shared_ptr<const Source> source;        ///< as it is written
  std::unique_ptr<Target> target;
};

/// Opens the input and settles what becomes of it. \throws what readers and writers throw; RequestError for changes
/// that do not go with the format
ConversionPlan plan_conversion(const Conversion& conversion, const Logger& log);

/// Writes the plan's output. Collective over `world`. \param progress, stop  see CopyOptions
/// \throws as copy(); FormatError for adapters that were trained for other weights
CopyReport write_conversion(ProcessGroup& world, const Conversion& conversion, const ConversionPlan& plan,
                            std::function<void(const CopyProgress&)> progress, std::function<bool()> stop);

/// Lists the parts of the input that have not come into the output. Collective, after the copy.
Ignored left_out_by(ProcessGroup& world, const Conversion& conversion, const ConversionPlan& plan);

}  // namespace fsdp
