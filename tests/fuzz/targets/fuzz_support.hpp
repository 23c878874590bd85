#pragma once
// Shared by the fuzz targets: inputs as files, and the errors that a parser may throw.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "lib/base/types/error.hpp"
#include "memory_files.hpp"

namespace fsdp::fuzz {

/// Larger tensors are not read: an input of a few kilobytes can correctly claim more (a view with stride 0).
constexpr std::uint64_t max_read_bytes = 64u << 10;

/// A file in memory that has a path; each input replaces its contents.
class MemoryFile {
 public:
  std::filesystem::path fill(std::string_view bytes) {
    files_.add("input", bytes);
    return std::filesystem::path(MemoryFiles::root) / "input";
  }

 private:
  MemoryFiles files_;
};

/// Runs `parse`, which may throw only these two errors. Any other error ends the process, which the fuzzer reports.
template <typename Parse>
void refusal_is_fine(Parse parse) {
  try {
    parse();
  } catch (const FormatError&) {
  } catch (const IoError&) {  // e.g. a file that an index names is missing
  }
}

/// Returns an upper bound of the nesting depth of lists and objects in a JSON text.
inline int depth_of(std::string_view json) {
  int depth = 0, most = 0;
  for (const char c : json) {
    if (c == '[' || c == '{') most = std::max(most, ++depth);
    if (c == ']' || c == '}') --depth;
  }
  return most;
}

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace fsdp::fuzz
