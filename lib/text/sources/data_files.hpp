#pragma once
// Which files hold data, and which cannot be read as texts.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
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

namespace fsdp::detail {

// A file's kind by its name; capitals do not matter.

enum class NamedKind { parquet, json_lines, csv, json, text, other };

/// ".jsonl" of "A.JSONL"
std::string lower_suffix(const std::filesystem::path& file);

/// By the suffix: .parquet; .jsonl, .ndjson, .jsonlines, .jl; .csv, .tsv; .json; .txt.
NamedKind kind_by_name(const std::filesystem::path& file);

// Files that hold something else than texts. Read as a text, their bytes would be trained on without a word.

/// The number of bytes at the beginning of a file that are examined.
inline constexpr std::uint64_t kHead_bytes = 64 << 10;

/// Refuses a file whose first bytes are those of a known format, or of UTF-16 or UTF-32.
/// \param head  its first kHead_bytes, or all of it
/// \throws FormatError naming the format and what to do
void refuse_foreign_format(const std::filesystem::path& file, std::string_view head);

/// Refuses a file whose head is no text: it holds a NUL byte, or is no UTF-8.
/// \throws FormatError naming the byte's place, what the file may be by its name, and what to do
void refuse_binary(const std::filesystem::path& file, std::string_view head);

}  // namespace fsdp::detail
