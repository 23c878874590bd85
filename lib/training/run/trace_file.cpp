#include "lib/training/run/trace_file.hpp"

#include <cstddef>
#include <exception>

#include "lib/base/files/output_file.hpp"

namespace fsdp {

std::string write_trace(ProcessGroup& world, const std::string& file, const TraceRecorder& trace, const Logger& log) {
  if (file.empty()) return "";
  const auto parts = world.gather(trace.events_json(world.rank()), 0);
  if (world.rank() != 0) return "";
  std::string text = "[";
  for (std::size_t r = 0; r < parts.size(); ++r) text += (r == 0 ? "\n" : ",\n") + parts[r];
  try {
    write_output(file, text + "\n]\n");
  } catch (const std::exception& error) {
    return error.what();
  }
  log.info("trace     " + file + "   open it in Perfetto (ui.perfetto.dev) or chrome://tracing");
  return "";
}

}  // namespace fsdp
