#pragma once
// The file of a trace: the events of all ranks, as Perfetto reads them.
#include <string>

#include "lib/base/messages/log.hpp"
#include "lib/engine/sharding/trace.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// Writes the file on rank 0; does nothing if `file` is empty. Collective.
/// \return an error message on rank 0, which is raised only after the results of training are safe
std::string write_trace(ProcessGroup& world, const std::string& file, const TraceRecorder& trace, const Logger& log);

}  // namespace fsdp
