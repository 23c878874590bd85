#pragma once
// Files that a job leaves beside its checkpoints when no step is left: the adapter's, and exports.
#include <filesystem>
#include <string>

#include "apps/finetune/reports/run_record.hpp"
#include "apps/finetune/run_setup.hpp"
#include "lib/training/run/run_clock.hpp"
#include "lib/training/run/run_parts.hpp"

namespace fsdp::detail {

class FinalFiles final : public RunOutputs {
 public:
  /// \param taken  the checkpoint that the job began with; empty: none. All references must outlive the object
  FinalFiles(const RunContext& context, const RunRecord& record, const RunClock& clock, std::filesystem::path taken)
      : context_(context), record_(record), clock_(clock), taken_(std::move(taken)) {}

  /// Saves adapters only when the run's record is open: otherwise an older run of the name keeps its own.
  void write_adapter() override;
  bool export_files(bool is_saved) override;
  /// "best" or "last": what --final best exported; "": nothing.
  const std::string& exported() const { return exported_; }
  /// The newest checkpoint of the run; empty: none.
  const std::filesystem::path& last_checkpoint() const {
    return record_.last_checkpoint().empty() ? taken_ : record_.last_checkpoint();
  }

 private:
  bool save_tokenizer(const std::filesystem::path& directory);
  void save_template(const std::filesystem::path& file);

  const RunContext& context_;
  const RunRecord& record_;
  const RunClock& clock_;
  std::filesystem::path taken_;
  std::string exported_;
};

}  // namespace fsdp::detail
