#pragma once
#include <filesystem>
#include <system_error>
#include <utility>

namespace fsdp {

/// A directory that is removed with its content on destruction, by the one of the ranks that owns it.
class TemporaryDirectory {
 public:
  /// Makes nothing. \param is_owner  false: another rank removes it
  TemporaryDirectory(std::filesystem::path path, bool is_owner) : path_(std::move(path)), is_owner_(is_owner) {}
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() { remove(); }

  const std::filesystem::path& path() const { return path_; }
  /// Removes it now, if it is there: that of a job that was killed.
  void remove() const {
    std::error_code ignored;
    if (is_owner_) std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::filesystem::path path_;
  bool is_owner_;
};

}  // namespace fsdp
