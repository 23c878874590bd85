#pragma once
// Takes the optimizer's state out of a checkpoint of fsdp-finetune, which keeps its name, its weights and its run.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "lib/checkpoints/programs/dcp/dcp_target.hpp"

namespace fsdp {

/// A copy of one checkpoint without the optimizer's state, in a hidden folder beside the checkpoint until the copy
/// takes its name. A kill at any instant leaves the whole checkpoint or the whole copy, under the name or beside it.
class WeightsAlone {
 public:
  /// Reads .metadata and run.json.
  /// \param checkpoint  a directory, not a link
  /// \throws FormatError, also when the directory holds a file that the checkpoint was not saved with; IoError
  explicit WeightsAlone(std::filesystem::path checkpoint);
  /// Removes the copy unless it has the checkpoint's name.
  ~WeightsAlone();
  WeightsAlone(const WeightsAlone&) = delete;
  WeightsAlone& operator=(const WeightsAlone&) = delete;

  /// True when the checkpoint has no optimizer's state: there is nothing to do.
  bool is_done() const;
  /// Bytes that the checkpoint will be smaller.
  std::uint64_t freed_bytes() const { return freed_bytes_; }
  /// Copies and syncs the data. May run beside changes of run.json. \return false when `stop` returned true
  /// \throws IoError, FormatError
  bool write(const std::function<bool()>& stop);
  /// Gives the copy run.json as it is now, and the checkpoint's name; removes what had it.
  /// \return false when the checkpoint is gone or is another one by now
  bool replace();

 private:
  std::filesystem::path checkpoint_, temporary_;
  nlohmann::json files_;        ///< of run.json, as the copy began
  std::vector<DcpItem> items_;  ///< of the copy; before write() with their places in the checkpoint
  std::vector<WrittenFile> written_;
  std::uint64_t freed_bytes_ = 0;
};

/// Steps of the checkpoints of fsdp-finetune in a folder: directories step-NNNNNNNN with run.json. Ascending.
std::vector<std::int64_t> saved_steps(const std::filesystem::path& checkpoints);

}  // namespace fsdp
