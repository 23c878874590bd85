#pragma once
// Files that hold something else than texts. Read as a text, their bytes would be trained on without a word.
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace fsdp::detail {

/// The number of bytes at the beginning of a file that are examined.
inline constexpr std::uint64_t kHead_bytes = 64 << 10;

/// Refuses a file whose first bytes are those of a known format, or of UTF-16 or UTF-32.
/// \param head  its first kHead_bytes, or all of it
/// \throws FormatError naming the format and what to do
void refuse_foreign_format(const std::filesystem::path& file, std::string_view head);

/// Refuses a file whose head is no text: it holds a NUL byte, or is no UTF-8.
/// \throws FormatError naming the byte's place, what the file may be by its name, and what to do
void refuse_binary(const std::filesystem::path& file, std::string_view head);

}  // namespace fsdp::detail
