#pragma once
// RUN/job.json: what the run's newest job was started with and what became of it, for whoever looks at the run's
// folder.
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/finetune/run_context.hpp"
#include "lib/training/checkpoints/save.hpp"

namespace fsdp::detail {

/// On rank 0. Training goes on where the file cannot be written.
class JobFile {
 public:
  /// \param first_step  of this job
  /// \param predicted_bytes  of a rank's peak; 0: not known
  JobFile(const RunContext& context, std::int64_t first_step, std::int64_t predicted_bytes);

  void add_save(const SaveResult& save, std::int64_t step);
  /// \param outcome    "done" or "stopped"
  /// \param why_early  it is done before its last step: why; else empty
  void end(std::string_view outcome, const std::string& why_early);

 private:
  void write();

  const RunContext& context_;
  nlohmann::json content_;
  bool warned_ = false;
};

}  // namespace fsdp::detail
