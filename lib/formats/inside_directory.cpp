#include "lib/formats/inside_directory.hpp"

#include <algorithm>

#include "lib/base/types/error.hpp"

namespace fsdp {

std::filesystem::path inside_directory(const std::filesystem::path& directory, const std::string& relative,
                                       const std::filesystem::path& index_file) {
  const std::filesystem::path path(relative);
  const bool climbs = std::any_of(path.begin(), path.end(), [](const auto& part) { return part == ".."; });
  if (relative.empty() || relative.find('\0') != std::string::npos || path.is_absolute() || climbs) {
    std::string shown = relative.substr(0, 200);
    std::replace(shown.begin(), shown.end(), '\0', '?');  // a zero byte would end the message
    throw FormatError(index_file.string() + ": names the data file \"" + shown +
                      "\", which does not lie inside the checkpoint's directory; refused");
  }
  return directory / path;
}

}  // namespace fsdp
