#include "apps/finetune/reports/samples_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/files/file.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/agree.hpp"

namespace fsdp::detail {
namespace {

nlohmann::ordered_json line_of(const TrainingData& data, std::int64_t position, const MixtureSample& sample) {
  const auto& [name, path, rows, weight, epochs, place] = data.sources()[sample.source];
  const bool is_text = rows.has_documents() && !rows.is_packed();
  nlohmann::ordered_json line{{"position", position},
                              {"source", name},
                              {is_text ? "document" : "row", sample.row.row},
                              {"epoch", sample.row.epoch}};
  if (rows.is_packed()) line["documents"] = rows.documents_of(sample.row.row, sample.row.epoch);
  return line;
}

}  // namespace

void write_samples(ProcessGroup& world, const RunSetup& setup, const Logger& log) {
  if (!setup.train_data) throw UsageError("--samples lists the samples of a run: this job does not train");
  const auto& options = setup.options;
  run_agreed(world, [&] {
    if (world.rank() != 0) return;
    const auto& data = *setup.train_data;
    auto order = data.order();
    const bool goes_on = setup.restart && setup.restart->knows_run;
    const auto begin = goes_on ? setup.restart->manifest.state.samples : data.first_position();
    const auto end =
        std::min({begin + options.num_samples, setup.total_samples, setup.total_steps * setup.batches.rows_per_step});
    std::string text;
    for (auto position = begin; position < end; ++position)
      text +=
          line_of(data, position, order.at(position)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
          "\n";
    replace_file(options.samples_file, text);
    log.info(fmt::format("samples   {} from position {} on in {}",
                         format_count_of(std::max<std::int64_t>(0, end - begin), "sample"), begin,
                         options.samples_file));
  });
}

}  // namespace fsdp::detail
