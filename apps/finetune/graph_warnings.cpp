#include "apps/finetune/graph_warnings.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace fsdp::detail {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

void GraphWarnings::tell() {
  const auto counts = context_.runtime.engine().recording_counts();
  if (std::exchange(refused_, counts.refused) != counts.refused) {
    context_.progress.finish();
    context_.log.warning(
        fmt::format("a CUDA graph could not be captured, from here on micro-batches of its shape and place in the step "
                    "are launched kernel by kernel, with the same results: {} (--cuda-graphs off says that this is "
                    "meant)",
                    first_line(counts.problem)));
  }
  if (counts.given_up.empty() || std::exchange(told_of_memory_, true)) return;
  context_.progress.finish();
  context_.log.warning(
      fmt::format("out of memory beside CUDA graphs: they were given up with what they kept, and what had no room ran "
                  "again; from here on micro-batches are launched kernel by kernel, with the same results: {} "
                  "(--cuda-graphs off does so from the start)",
                  first_line(counts.given_up)));
}

}  // namespace fsdp::detail
