#include <fmt/format.h>

#include <algorithm>

#include "apps/memprobe/memprobe_job.hpp"
#include "lib/base/output_file.hpp"
#include "lib/base/text_format.hpp"
#include "lib/planning/memory/timeline.hpp"

namespace fsdp::detail {

void draw_memory(const std::string& file, const Answer& answer, const MemoryBudget& budget, const std::string& title) {
  const bool svg = file.ends_with(".svg");
  const auto& p = answer.prediction;
  MemoryTimeline timeline;
  timeline.title = "Memory of a training step: " + title;
  const auto& c = answer.combination;
  timeline.subtitle = fmt::format("{} x {}, {}, {}, checkpointing {}", format_count_of(c.ranks, "rank"),
                                  format_count_of(answer.batch_size, "sequence"), to_string(c.sharding),
                                  float_type_name(c.precision), c.checkpointing());
  // What is always there lies lowest.
  const std::int64_t outside = p.on_gpu ? p.overheads.context_bytes + p.overheads.nccl_bytes : 0;
  if (outside > 0) timeline.layers.emplace_back("CUDA context, NCCL");
  for (int category = 0; category < kNumMemoryCategories; ++category) {
    auto name = std::string(to_string(static_cast<MemoryCategory>(category)));
    std::replace(name.begin(), name.end(), '_', ' ');
    timeline.layers.push_back(std::move(name));
  }
  // More columns than pixels show nothing: of each group the highest.
  constexpr std::size_t kColumns = 800;
  const auto& all = p.profile.timeline;
  const std::size_t group = std::max<std::size_t>(1, (all.size() + kColumns - 1) / kColumns);
  for (std::size_t first = 0; first < all.size(); first += group) {
    const auto last = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), first + group));
    const auto& phase =
        *std::max_element(all.begin() + static_cast<std::ptrdiff_t>(first), last,
                          [](const MemoryPhase& a, const MemoryPhase& b) { return a.peak_bytes < b.peak_bytes; });
    MemoryTimeline::Phase column{phase.name, {}};
    if (outside > 0) column.bytes.push_back(static_cast<double>(outside));
    for (const auto bytes : phase.at_peak) column.bytes.push_back(static_cast<double>(bytes));
    timeline.phases.push_back(std::move(column));
  }
  if (budget.gpu) {
    timeline.limit_bytes = static_cast<double>(budget.gpu->total_bytes);
    timeline.limit_name = fmt::format("{}: {}", budget.gpu->name, format_bytes(timeline.limit_bytes));
  }
  write_output(file, svg ? memory_timeline_svg(timeline) : memory_timeline_png(timeline));
}

}  // namespace fsdp::detail
