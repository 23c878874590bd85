#pragma once
// The kind of a data file, by its name in any case and by its first bytes.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace fsdp::detail {

enum class NamedKind { parquet, json_lines, csv, arrow, json, text, other };

/// ".jsonl" of "A.JSONL"
std::string lower_suffix(const std::filesystem::path& file);

/// The name without .gz, .zst or .zstd at its end.
std::filesystem::path unpacked_name(const std::filesystem::path& file);

/// Chooses the kind by the suffix: .parquet; .jsonl, .ndjson, .jsonlines, .jl; .csv, .tsv; .json; .txt; all but the
/// first also with .gz, .zst or .zstd after it.
NamedKind kind_by_name(const std::filesystem::path& file);

/// Returns the command that unpacks a file of this name, such as "gunzip"; empty for files that are not compressed.
std::string unpacking_command(const std::filesystem::path& file);

/// Returns the kind of file that the suffix names, if no program here reads it: "an Arrow file"; empty for other
/// suffixes.
std::string foreign_kind(const std::filesystem::path& file);

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
