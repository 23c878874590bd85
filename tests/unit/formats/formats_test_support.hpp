#pragma once
// Shared by the tests of lib/formats.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/dtype.hpp"
#include "lib/formats/shard_record.hpp"
#include "tests/support/temp_files.hpp"

namespace fsdp::test {

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
