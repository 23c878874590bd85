#pragma once
// The record in every directory that is written here: which files are ours, so that a later export replaces these and
// nothing else (docs/formats.md).
#include <filesystem>
#include <string>

namespace fsdp {

inline constexpr const char* export_record_name = ".fsdp-export.json";

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

}  // namespace fsdp
