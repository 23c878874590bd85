#pragma once
// The hidden directory in which an output is written before it gets its name. An output directory has a record of its
// files (docs/formats.md), so that a later export replaces these and nothing else.
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/target/layout.hpp"

namespace fsdp {

inline constexpr const char* kExportRecordName = ".fsdp-export.json";

/// Names the process that writes into a temporary directory, as long as it does.
inline constexpr const char* kMakerName = ".fsdp-maker.json";

/// Writes a record of the files that `directory` has now, with their sizes. \throws IoError
/// \param made_by  see CopyOptions::made_by
void write_export_record(const std::filesystem::path& directory, bool sync, const std::string& made_by);

/// The folder of the run whose export `directory` is; empty where its record names none, as for a conversion.
std::filesystem::path run_of_export(const std::filesystem::path& directory);

/// Says why an export must not replace `directory`, as the part of a sentence after its name. Returns "" when nothing
/// is there, or when the directory is empty or holds an unchanged earlier export and nothing else. Links are followed.
std::string export_obstacle(const std::filesystem::path& directory);

/// Removes the files in the record of `directory`, the record, and the directory. Other files that came into the
/// directory since it was checked are moved into `heir`.
void remove_export(const std::filesystem::path& directory, const std::filesystem::path& heir);

/// When `directory` is missing because a replacement was cut short between two renames, gives the earlier export, which
/// lies beside it, its name back.
void restore_export(const std::filesystem::path& directory);

/// Exchanges two existing names in one step. \return false when the file system cannot do that (NFS, Lustre)
/// \throws IoError
bool exchange_names(const std::filesystem::path& a, const std::filesystem::path& b);

/// Removes the temporary directories that conversions to `output` left, and whose processes have surely ended: killed
/// ones on this host. Others stay.
void remove_remains(const std::filesystem::path& output);

/// The name of the earlier export while it is replaced. \param temporary  the temporary directory of the replacement
std::filesystem::path set_aside_name(const std::filesystem::path& temporary);

namespace detail {

/// The temporary directory of an output, for use on one rank. Removes it when it goes out of scope.
class OutputDirectory {
 public:
  /// Checks that the output may be written and creates the temporary directory.
  /// \throws RequestError when the output exists and `overwrite` is false, when it is part of the input, or when it
  /// must not be replaced (a file by a directory or the reverse, a directory that is no earlier export); IoError
  OutputDirectory(const Source& source, const Layout& layout, const std::filesystem::path& output, bool is_directory,
                  bool overwrite);
  ~OutputDirectory();
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  const std::filesystem::path& temporary() const { return temporary_; }
  /// Creates the files with their sizes. \throws IoError when they do not fit on the disk or exceed a file-size limit
  void create_files() const;
  /// Writes the literals. \throws IoError
  void write(const std::vector<LayoutLiteral>& literals) const;
  /// Gives the output its name; with `sync` files and names are flushed to disk first. \throws IoError
  /// \param made_by  see CopyOptions::made_by
  void publish(bool sync, const std::string& made_by = {});

 private:
  void check_target(const std::filesystem::path& path, bool overwrite) const;
  void check_input(const Source& source) const;
  void make_temporary();
  void name_maker();
  void publish_directory();

  const Layout& layout_;
  std::filesystem::path output_, parent_, temporary_;
  std::vector<std::filesystem::path> destinations_;  ///< of the files, when the output is no directory
  bool is_directory_;
  bool overwrite_;
};

}  // namespace detail

}  // namespace fsdp
