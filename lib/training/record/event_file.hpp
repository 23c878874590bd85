#pragma once
// TensorBoard's event file: what metrics.jsonl has, for people who look at curves. Source of the format:
// tensorflow/core/lib/io/record_writer.cc, tensorflow/core/util/event.proto, summary.proto.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/messages/log.hpp"

namespace fsdp {

/// One file for each job of a run. Records are appended and flushed at once. As of metrics.jsonl, training goes on
/// where one cannot be written; what is missing waits in memory. Where the file was removed, later records make a new
/// one.
class EventFile {
 public:
  /// \param resume_step  points of later steps in the run's earlier files are hidden; negative: the run begins
  EventFile(const std::filesystem::path& directory, std::int64_t resume_step, const Logger& log);
  /// Tries once more to write what is missing.
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// The numbers of a record of metrics.jsonl as scalars of its step, under `train/`, `validation/`, `memory/`; those
  /// of a validation set with a name under `validation/NAME/`.
  void add(const nlohmann::json& record);
  /// Shown under "Text". \param text  Markdown
  void add_text(std::string_view tag, std::string_view text, std::int64_t step = 0);
  const std::filesystem::path& path() const { return path_; }

  /// The run's event files in a folder, in no order.
  static std::vector<std::filesystem::path> in(const std::filesystem::path& directory);

 private:
  void write(const std::string& event);
  void leave_removed_file();
  void cut_torn_record();

  std::filesystem::path path_;
  const Logger& log_;
  File file_;
  std::string header_;  ///< the record that every file begins with
  std::string waiting_;
  std::uint64_t size_bytes_ = 0;  ///< whole records in the file
  bool warned_ = false;
};

namespace detail {
/// CRC-32C (Castagnoli), rotated and shifted as records keep it.
std::uint32_t masked_crc32c(std::string_view data);
}  // namespace detail

}  // namespace fsdp
