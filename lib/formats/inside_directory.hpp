#pragma once
#include <filesystem>
#include <string>

namespace fsdp {

/// Returns DIRECTORY/RELATIVE for a file name that a checkpoint index holds.
/// \throws FormatError, with `index_file` in the message, when the name is empty or absolute, climbs out with "..", or
/// holds a zero byte
std::filesystem::path inside_directory(const std::filesystem::path& directory, const std::string& relative,
                                       const std::filesystem::path& index_file);

}  // namespace fsdp
