#include "apps/finetune/job_file.hpp"

#include <fmt/format.h>

#include <chrono>

#include "lib/base/file.hpp"
#include "lib/base/json_text.hpp"

namespace fsdp::detail {
namespace {

constexpr std::size_t kMostSaves = 100;

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

JobFile::JobFile(const RunContext& context, std::int64_t first_step, std::int64_t predicted_bytes)
    : context_(context), content_(run_manifest_to_json(context.manifest())) {
  const auto& setup = context.setup;
  content_.erase("state");
  content_["format"] = "fsdp-job";
  content_["program_version"] = FSDP_VERSION;
  content_["options"] = setup.options.as_given;
  content_["parameters"] = num_parameters(context.runtime.decoder().parameters);
  content_["nodes"] = context.runtime.mesh().num_nodes;
  content_["threads"] = setup.threads;
  content_["device"] =
      setup.device.backend == nullptr ? "cpu" : setup.device.backend->info(setup.device.device.index()).name;
  content_["micro_batch_size"] = setup.batches.micro_batch_size;
  content_["accumulation_steps"] = setup.batches.accumulation_steps;
  content_["rows_per_step"] = setup.batches.rows_per_step;
  content_["tokens_per_row"] = setup.train_data->tokens_per_row();
  content_["first_step"] = first_step;
  content_["total_steps"] = setup.total_steps;
  content_["predicted_bytes"] = predicted_bytes;
  content_["started"] = unix_seconds();
  content_["saves"] = nlohmann::json::array();
  write();
}

void JobFile::add_save(const SaveResult& save, std::int64_t step) {
  auto& saves = content_["saves"];
  if (saves.size() >= kMostSaves) saves.erase(0);
  saves.push_back({{"step", step},
                   {"bytes", save.size_bytes},
                   {"seconds", save.seconds},
                   {"waited_seconds", save.blocked_seconds}});
  write();
}

void JobFile::end(std::string_view outcome, const std::string& why_early) {
  content_["ended"] = unix_seconds();
  content_["outcome"] = outcome;
  if (!why_early.empty()) content_["ended_early"] = why_early;
  write();
}

void JobFile::write() {
  try {
    replace_file(context_.setup.directory / "job.json", printable_json(content_, 1) + "\n");
  } catch (const std::exception& error) {
    if (!warned_) context_.log.warning(fmt::format("{}; training goes on", error.what()));
    warned_ = true;
  }
}

}  // namespace fsdp::detail
