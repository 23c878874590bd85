#pragma once
// The key-value pairs at the beginning of a GGUF file, in which llama.cpp describes model and tokenizer. Format:
// github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3, little-endian.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/files/file.hpp"
#include "lib/base/types/little_endian.hpp"

namespace fsdp {

/// The first bytes of a file.
inline constexpr std::string_view kGgufMagic = "GGUF";

enum class GgufValueType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

/// Reads the header from its beginning on, some bytes at a time. A size in the file is compared with the bytes that are
/// left before anything is allocated.
class GgufCursor {
 public:
  /// Reads magic, version and counts. \throws FormatError
  explicit GgufCursor(const File& file);

  std::uint64_t num_tensors() const { return num_tensors_; }
  std::uint64_t num_entries() const { return num_entries_; }
  std::uint64_t at() const { return at_; }
  std::uint64_t rest() const { return size_ - at_; }
  [[noreturn]] void fail(const std::string& problem) const;

  /// Throws when fewer than `count` things of at least `each` bytes can follow.
  void expect(std::uint64_t count, std::uint64_t each, const char* what) const;
  /// The bytes are valid until the next call.
  std::string_view take(std::uint64_t bytes);
  void skip(std::uint64_t bytes);
  template <typename Integer>
  Integer integer() {
    return detail::read_le<Integer>(take(sizeof(Integer)), 0);
  }
  std::string string();
  GgufValueType value_type();
  /// A number or truth value. A float32 becomes the double with the shortest decimal text of that float32, so that
  /// 1e-5 is 1e-5. \param type  neither string nor array
  nlohmann::json number(GgufValueType type);

 private:
  const File& file_;
  std::string name_;
  std::uint64_t size_, at_ = 0, begin_ = 0, num_tensors_ = 0, num_entries_ = 0;
  std::string buffer_;
};

/// Bytes of a number; 0 for a string or an array.
std::uint64_t gguf_value_bytes(GgufValueType type);

/// True for a regular file that begins like a GGUF file.
bool is_gguf_file(const std::filesystem::path& path);

/// All pairs as an object: {"general.architecture": "llama", "tokenizer.ggml.tokens": [...], ...}. Texts are UTF-8.
/// \throws FormatError naming file and offset, and the key where one is known: damaged, a key twice, a text that is no
/// UTF-8, more than some million elements in arrays
nlohmann::json read_gguf_metadata(const std::filesystem::path& path);

}  // namespace fsdp
