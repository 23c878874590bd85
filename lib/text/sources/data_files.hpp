#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace fsdp {

struct DataFiles {
  std::vector<std::filesystem::path> files;
  std::vector<std::filesystem::path> companions;  ///< of directories: what describes data, and hidden files
  std::vector<std::filesystem::path> unread;      ///< of directories: all others that are not among `files`
};

/// The data files that `inputs` name, in this order. A directory stands for the data files in it and below it, sorted
/// by path, hidden ones left out: its Parquet, its JSON Lines or its CSV files (by the suffix, whatever its case);
/// where it has none of these its .json, else its .txt files (beside the others those usually only describe them).
/// \throws MissingInput when one does not exist, also for a link of a directory that leads nowhere; FormatError when a
///         directory has no data files, and for what lies there and may be a part of the data that cannot be read: a
///         compressed file, a table of another format, a pipe; UsageError when it has several of the first three kinds,
///         which often are the same data twice
DataFiles find_data_files(const std::vector<std::filesystem::path>& inputs);

/// Only the files.
std::vector<std::filesystem::path> data_files(const std::vector<std::filesystem::path>& inputs);

/// "README.md, info.json and 3 more", for a log.
std::string file_list(const std::vector<std::filesystem::path>& files);

}  // namespace fsdp
