#pragma once
// Shared by the tests of lib/hub.
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/process/process_identity.hpp"
#include "tests/support/temp_files.hpp"

namespace fsdp::test {

inline std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

inline void write_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  File file = File::create(path);
  file.write(text);
  file.close();
}

inline Bytes read_file(const std::filesystem::path& path) {
  const auto file = File::open_read(path);
  Bytes bytes(file.size_bytes());
  file.read_at(0, bytes);
  return bytes;
}

/// Returns the identity of a process on another host, whose state is not visible here.
inline ProcessIdentity elsewhere() { return {"far", "another-boot", "pid:[1]", 7, 9, "", ""}; }

/// Returns the identity of a process of this host that has ended.
inline ProcessIdentity ended() {
  auto identity = ProcessIdentity::own();
  ++identity.start_ticks;  // the process id belongs to another process now
  return identity;
}

}  // namespace fsdp::test
