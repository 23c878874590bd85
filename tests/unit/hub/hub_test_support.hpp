#pragma once
// Shared by the tests of lib/hub.
#include <cstddef>
#include <filesystem>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/hub/process_identity.hpp"

namespace fsdp::test {

/// A directory that is gone when the test ends.
class TempDir {
 public:
  TempDir() {
    auto pattern = (std::filesystem::temp_directory_path() / "fsdp-hub-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  Bytes bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

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

/// A process of another host, of which nothing can be seen from here.
inline ProcessIdentity elsewhere() { return {"far", "another-boot", "pid:[1]", 7, 9}; }

/// A process of this host that ended.
inline ProcessIdentity ended() {
  auto identity = ProcessIdentity::own();
  ++identity.start_ticks;  // the process id belongs to another process now
  return identity;
}

}  // namespace fsdp::test
