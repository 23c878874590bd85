#pragma once
// Files for data that wait until they are used.
#include <filesystem>

#include "lib/base/files/file.hpp"

namespace fsdp {

/// Creates a file without a name beside `file`, which vanishes with the process. \param what  part of its temporary
/// name. \throws IoError
File nameless_file(const std::filesystem::path& file, const char* what);

}  // namespace fsdp
