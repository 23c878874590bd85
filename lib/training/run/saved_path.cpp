#include "lib/training/run/saved_path.hpp"

#include <filesystem>
#include <system_error>

#include "lib/files/formats/pickle_value.hpp"

namespace fsdp {

std::optional<std::string> saved_path(const std::string& path) {
  if (!is_utf8(path)) return std::nullopt;
  std::error_code error;
  auto absolute = std::filesystem::absolute(path, error).lexically_normal().string();
  return error || !is_utf8(absolute) ? path : absolute;
}

}  // namespace fsdp
