#include "apps/finetune/reports/offload_reporter.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/base/text/text_format.hpp"

namespace fsdp::detail {
namespace {

/// Steps before disk rates are judged: the first steps read nothing, or data that is still in the page cache.
constexpr int kFirstSteps = 3;

std::string bytes(double n) { return format_bytes(n); }

}  // namespace

OffloadReporter::OffloadReporter(const RunContext& context) : context_(context), store_(context.runtime.store()) {
  if (store_ == nullptr) return;
  const auto& directory = context.setup.options.sharding.offload_optimizer.directory;
  context.log.info(fmt::format("offload   {}   {}   up to {} a rank in memory", directory, store_->describe(),
                               bytes(static_cast<double>(store_->budget_bytes()))));
  if (context.world.rank() == 0 && store_->is_in_memory())
    context.log.warning(fmt::format("{} is in memory itself (tmpfs): nothing is won by it, name a disk", directory));
  store_->on_silence([&log = context.log, directory, host = context.world.rank()](double seconds) {
    log.warning(fmt::format("rank {} has waited {} for {}: the disk does not answer", host, format_duration(seconds),
                            directory));
  });
}

void OffloadReporter::after_step(const StepReport& step, bool) {
  if (store_ == nullptr || ++steps_ <= kFirstSteps) return;
  seconds_ += step.seconds;
  wait_seconds_ += step.offload_wait_seconds;
  update_seconds_ += step.update_seconds;
  bytes_ += static_cast<double>(step.update_bytes);
  if (warned_ || context_.world.rank() != 0 || steps_ < 2 * kFirstSteps || wait_seconds_ < 0.5 * seconds_) return;
  warned_ = true;
  context_.progress.finish();
  context_.log.warning(fmt::format(
      "{:.0f} % of the time training waits for {}, which moves {}/s for this rank: a faster disk, more ranks or a "
      "larger "
      "--total-batch-size would help",
      100 * wait_seconds_ / seconds_, context_.setup.options.sharding.offload_optimizer.directory, bytes(rate())));
}

void OffloadReporter::report(nlohmann::json& report) const {
  if (store_ == nullptr) return;
  const auto& stats = store_->stats();
  report["offload"] = {{"directory", context_.setup.options.sharding.offload_optimizer.directory},
                       {"io", store_->describe()},
                       {"file_bytes", store_->file_bytes()},
                       {"memory_bytes", store_->budget_bytes()},
                       {"bytes_read", stats.bytes_read},
                       {"bytes_written", stats.bytes_written},
                       {"wait_seconds", stats.wait_seconds}};
  if (seconds_ > 0) {
    context_.log.info(
        fmt::format("offload   {} read and {} written by this rank, {}/s in updates; {:.0f} % of the time was waited",
                    bytes(static_cast<double>(stats.bytes_read)), bytes(static_cast<double>(stats.bytes_written)),
                    bytes(rate()), 100 * wait_seconds_ / seconds_));
  }
}

}  // namespace fsdp::detail
