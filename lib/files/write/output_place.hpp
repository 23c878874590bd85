#pragma once
// Where an output is written before it gets its name: a hidden directory beside it.
#include <filesystem>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/files/read/source.hpp"
#include "lib/files/write/layout.hpp"

namespace fsdp::detail {

/// For one rank only. Removes the temporary directory when it goes out of scope.
class OutputPlace {
 public:
  /// Checks that the output may be written and makes the temporary directory.
  /// \throws UsageError when the output exists and `overwrite` is false, is part of the input, or is something that is
  ///   not replaced: a file by a directory or the reverse, a directory that is no earlier export; IoError
  OutputPlace(const Source& source, const Layout& layout, const std::filesystem::path& output, bool is_directory,
              bool overwrite);
  ~OutputPlace();
  OutputPlace(const OutputPlace&) = delete;
  OutputPlace& operator=(const OutputPlace&) = delete;

  const std::filesystem::path& temporary() const { return temporary_; }
  /// Makes the files, each with its size. \throws IoError when they do not fit on the disk, or a file-size limit
  /// forbids
  void create_files() const;
  /// Writes bytes that are known. \throws IoError
  void write(const std::vector<LayoutLiteral>& literals) const;
  /// Gives the output its name; `sync` forces files and names to disk first. \throws IoError
  void publish(bool sync);

 private:
  void check_target(const std::filesystem::path& path, bool overwrite) const;
  void check_input(const Source& source) const;
  void make_temporary();
  void publish_directory();

  const Layout& layout_;
  std::filesystem::path output_, parent_, temporary_;
  std::vector<std::filesystem::path> destinations_;  ///< of the files, where the output is no directory
  bool is_directory_;
  bool overwrite_;
};

}  // namespace fsdp::detail
