#include "lib/training/run/saved_path.hpp"

#include <filesystem>
#include <system_error>

#include "lib/base/process/variables.hpp"
#include "lib/base/text/utf8.hpp"

namespace fsdp {

std::optional<std::string> saved_path(const std::string& path) {
  if (!is_utf8(path)) return std::nullopt;
  std::error_code error;
  auto absolute = std::filesystem::absolute(path, error).lexically_normal().string();
  const auto staged = variable_value("FSDP_STAGED");
  if (staged && absolute.starts_with(*staged + "/")) absolute.erase(0, staged->size());
  return error || !is_utf8(absolute) ? path : absolute;
}

}  // namespace fsdp
