#pragma once
// Finds data files.
#include <filesystem>
#include <string>
#include <vector>

namespace fsdp {

struct DataFiles {
  std::vector<std::filesystem::path> files;
  std::vector<std::filesystem::path> companions;  ///< in directories: files that describe data, and hidden files
  std::vector<std::filesystem::path> unread;      ///< in directories: all other files that are not among `files`
};

/// Lists the data files that `inputs` name, in this order. A directory stands for the data files in it and below it,
/// sorted by path, without hidden ones: its Parquet, its JSON Lines, its CSV or its Arrow files (by the suffix in any
/// case); if it has none of these, its .json files, else its .txt files, which beside other data usually are only
/// descriptions. \throws MissingInput when an input does not exist, also for a dangling link in a directory;
/// FormatError when a
///   directory has no data files, or a file that may be a part of the data and cannot be read: a compressed file, a
///   table of another format, a pipe; RequestError when a directory has several of the first four kinds, which often
///   hold the same data twice, or several splits of datasets.save_to_disk
DataFiles find_data_files(const std::vector<std::filesystem::path>& inputs);

/// Returns only the files of find_data_files().
std::vector<std::filesystem::path> data_files(const std::vector<std::filesystem::path>& inputs);

/// "README.md, info.json and 3 more", for a log. \param all  names every file
std::string file_list(const std::vector<std::filesystem::path>& files, bool all = false);

}  // namespace fsdp
