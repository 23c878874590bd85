#pragma once
// metrics.jsonl: one JSON object per optimizer step or evaluation, appended and flushed at once.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"

namespace fsdp {

class MetricsFile {
 public:
  /// Opens FILE for appending; with `resume_step` >= 0 lines of later steps (and a torn last line) are cut off first,
  /// otherwise an old file is replaced.
  MetricsFile(const std::filesystem::path& file, std::int64_t resume_step);
  void add(const nlohmann::json& record);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  File file_;
};

/// Draws DIR/loss.svg and DIR/loss.png from DIR/metrics.jsonl.
void draw_loss_curve(const std::filesystem::path& directory, const std::string& title, const std::string& subtitle);

}  // namespace fsdp
