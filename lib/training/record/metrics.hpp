#pragma once
// metrics.jsonl: one JSON object per optimizer step or evaluation, appended and flushed at once.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/base/files/file.hpp"
#include "lib/base/messages/log.hpp"

namespace fsdp {

/// Logging never stops training: if a line cannot be written (a full disk), this warns once, keeps the line in memory
/// and writes it as soon as there is room. Where the file was removed, later lines make a new one.
class MetricsFile {
 public:
  /// Opens FILE for appending; with `resume_step` >= 0 lines of later steps (and a torn last line) are cut off first,
  /// otherwise an old file is replaced.
  /// \param validates  that step is going to be validated: what there is of its validation is cut off, too
  MetricsFile(const std::filesystem::path& file, std::int64_t resume_step, const Logger& log, bool validates = false);
  /// Tries once more to write what is missing, and says how much of it could not be.
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void add(const nlohmann::json& record);
  /// Has on disk what was written, so that a power failure does not take the steps of a checkpoint that it leaves.
  void sync() noexcept;
  const std::filesystem::path& path() const { return path_; }

 private:
  void open();
  void open_again();
  void write_waiting();
  void cut_torn_line() noexcept;

  std::filesystem::path path_;
  const Logger& log_;
  File file_;
  bool whole_ = false;  ///< file_ is open and holds what was written before; otherwise it is to be made of kept_
  std::string kept_;    ///< lines of the run that goes on
  std::string waiting_;
  std::uint64_t size_bytes_ = 0;  ///< whole lines in the file
  bool warned_ = false;
};

/// Draws DIR/loss.svg from DIR/metrics.jsonl.
void draw_loss_curve(const std::filesystem::path& directory, const std::string& title, const std::string& subtitle);

}  // namespace fsdp
