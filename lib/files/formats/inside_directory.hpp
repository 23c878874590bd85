#pragma once
#include <filesystem>
#include <string>

namespace fsdp {

/// DIRECTORY/RELATIVE for a file name found in a checkpoint's index. \throws FormatError, in the name of `index_file`,
/// when the name is empty, absolute, climbs out with "..", or holds a zero byte
std::filesystem::path inside_directory(const std::filesystem::path& directory, const std::string& relative,
                                       const std::filesystem::path& index_file);

}  // namespace fsdp
