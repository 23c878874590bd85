#pragma once
// Shared by the tests of lib/formats.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/formats/dtype.hpp"
#include "lib/formats/shard_record.hpp"

namespace fsdp::test {

/// A directory that is gone when the test ends.
class TempDir {
 public:
  TempDir() {
    auto pattern = (std::filesystem::temp_directory_path() / "fsdp-formats-XXXXXX").string();
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

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline void write_file(const std::filesystem::path& path, std::string_view text) {
  File file = File::create(path);
  file.write(text);
  file.close();
}

inline std::size_t tensor_bytes(DType dtype, const Shape& shape) {
  return static_cast<std::size_t>(num_elements(shape)) * dtype_size_bytes(dtype);
}

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(FSDP_FIXTURE_DIR) / "checkpoints" / name;
}

}  // namespace fsdp::test
