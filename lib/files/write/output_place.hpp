#pragma once
// The record in every directory that is written here: which files are ours, so that a later export replaces these and
// nothing else (docs/formats.md).
// Where an output is written before it gets its name: a hidden directory beside it.
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/files/read/source.hpp"
#include "lib/files/write/layout.hpp"

namespace fsdp {

inline constexpr const char* kExportRecordName = ".fsdp-export.json";

/// Lists the files that lie in `directory` now, with their sizes, in its record. \throws IoError
void write_export_record(const std::filesystem::path& directory, bool sync);

/// Why an export must not take the place of what lies at `directory`, as the part of a sentence after its name; "" when
/// nothing is there, or it is empty, or it holds an earlier export, unchanged and with nothing beside it. A link stands
/// for the directory that it leads to.
std::string export_obstacle(const std::filesystem::path& directory);

/// Removes the files that the record of `directory` names, the record, and the directory. What else came into it
/// meanwhile is moved into `heir`.
void remove_export(const std::filesystem::path& directory, const std::filesystem::path& heir);

/// Where `directory` is missing because a replacement was cut short between two renames, gives the earlier export,
/// which lies beside it, its name back.
void restore_export(const std::filesystem::path& directory);

/// The name beside `directory` under which the earlier export lies meanwhile. \param temporary  of its replacement
std::filesystem::path set_aside_name(const std::filesystem::path& temporary);

namespace detail {

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

}  // namespace detail

}  // namespace fsdp
