#pragma once
// A file's kind by its name; capitals do not matter.
#include <filesystem>
#include <string>

namespace fsdp::detail {

enum class NamedKind { parquet, json_lines, csv, json, text, other };

/// ".jsonl" of "A.JSONL"
std::string lower_suffix(const std::filesystem::path& file);

/// By the suffix: .parquet; .jsonl, .ndjson, .jsonlines, .jl; .csv, .tsv; .json; .txt.
NamedKind kind_by_name(const std::filesystem::path& file);

/// The command that unpacks what is called like this, such as "gunzip"; "" for what is not compressed.
std::string unpacking_command(const std::filesystem::path& file);

/// The kind of file that the suffix names and that no program here reads: "an Arrow file"; empty for other suffixes.
std::string foreign_kind(const std::filesystem::path& file);

/// Usual beside data and never data: README, LICENSE, dataset_info.json, checksums, scripts, pictures, hidden files.
bool is_companion(const std::filesystem::path& file);

}  // namespace fsdp::detail
