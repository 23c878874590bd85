#pragma once
// Finds data files, and refuses files that cannot be read as texts.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
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
///   table of another format, a pipe; UsageError when a directory has several of the first four kinds, which often
///   hold the same data twice, or several splits of datasets.save_to_disk
DataFiles find_data_files(const std::vector<std::filesystem::path>& inputs);

/// Returns only the files of find_data_files().
std::vector<std::filesystem::path> data_files(const std::vector<std::filesystem::path>& inputs);

/// "README.md, info.json and 3 more", for a log. \param all  names every file
std::string file_list(const std::vector<std::filesystem::path>& files, bool all = false);

}  // namespace fsdp

namespace fsdp::detail {

// Kind of a file by its name, in any case.

enum class NamedKind { parquet, json_lines, csv, arrow, json, text, other };

/// ".jsonl" of "A.JSONL"
std::string lower_suffix(const std::filesystem::path& file);

/// The name without .gz, .zst or .zstd at its end.
std::filesystem::path unpacked_name(const std::filesystem::path& file);

/// Chooses the kind by the suffix: .parquet; .jsonl, .ndjson, .jsonlines, .jl; .csv, .tsv; .json; .txt; all but the
/// first also with .gz, .zst or .zstd behind it.
NamedKind kind_by_name(const std::filesystem::path& file);

// Refusal of files that hold something other than texts: read as a text, their bytes would silently be trained on.

/// The number of bytes at the beginning of a file that are examined.
inline constexpr std::uint64_t kHead_bytes = 64 << 10;

/// Refuses a file whose first bytes are those of a known format, or of UTF-16 or UTF-32.
/// \param head  first kHead_bytes bytes of the file, or the whole file
/// \throws FormatError naming the format and a remedy
void refuse_foreign_format(const std::filesystem::path& file, std::string_view head);

/// Refuses a file whose head is not a text: it contains a NUL byte, or is not UTF-8.
/// \throws FormatError naming the position of the byte, what the file may be by its name, and a remedy
void refuse_binary(const std::filesystem::path& file, std::string_view head);

}  // namespace fsdp::detail
