#pragma once
// The data files of a checkpoint: opened when needed, not all at once.
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/base/file.hpp"

namespace fsdp {

/// Const member functions may be called from several threads.
class FileSet {
 public:
  /// Returns the file's number.
  std::uint32_t add(std::filesystem::path path);
  const std::vector<std::filesystem::path>& paths() const { return paths_; }
  /// At most 128 files stay open, besides those that somebody holds. \throws IoError
  std::shared_ptr<const File> open(std::uint32_t number) const;

 private:
  std::vector<std::filesystem::path> paths_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const File>> open_;  // by number; null: closed
  mutable std::deque<std::uint32_t> order_;                // open ones, oldest first
};

}  // namespace fsdp
