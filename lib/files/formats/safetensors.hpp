#pragma once
// safetensors files and the sharded model directories of Hugging Face.
// Format: github.com/huggingface/safetensors, README "Format".
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/dtype.hpp"
#include "lib/base/file.hpp"
#include "lib/files/formats/shard_record.hpp"

namespace fsdp {

/// An element type of the format that nothing here computes with, some of them narrower than a byte: such a tensor is
/// its bytes, and has this type and shape where it is written to safetensors again.
struct OtherType {
  std::string name;
  Shape shape;
};

struct SafetensorsEntry {
  DType dtype = DType::f32;          ///< of an OtherType u8
  Shape shape;                       ///< of an OtherType the number of its bytes
  std::uint64_t begin = 0, end = 0;  ///< bytes in the file (not in its data section)
  std::optional<OtherType> other = {};
};

/// One file. Const member functions may be called from several threads.
class SafetensorsReader {
 public:
  /// Reads and validates the header: sizes match, ranges tile the data section, all inside the file.
  /// \throws FormatError, IoError
  explicit SafetensorsReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, SafetensorsEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Copies rows [first_row, first_row + num_rows) of dim 0 into `out`, which has exactly their bytes. A scalar has
  /// one row. \throws UsageError on an unknown name, rows outside the tensor or a wrong `out`
  void read_rows(const std::string& name, std::int64_t first_row, std::int64_t num_rows,
                 std::span<std::byte> out) const;

 private:
  File file_;
  std::map<std::string, SafetensorsEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor that a safetensors file will hold.
struct SafetensorsItem {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::optional<OtherType> other = {};
};
/// A safetensors file of which all but the tensors' data is known.
struct SafetensorsPlan {
  std::string head;                    ///< the file up to the data
  std::vector<std::uint64_t> offsets;  ///< where in the file each tensor's data goes
  std::uint64_t size_bytes = 0;        ///< of the whole file
};
/// Order and padding as the reference writer's: by type, largest first, then by name; header padded to 8 bytes.
/// \throws UsageError on a repeated or complex tensor
SafetensorsPlan plan_safetensors(std::span<const SafetensorsItem> tensors,
                                 const std::map<std::string, std::string>& metadata);

/// Writes whole tensors (offsets are zero, sizes the global shape) to `path` by way of a temporary file and a rename;
/// order and padding as in plan_safetensors().
/// \throws UsageError on a partial, repeated or complex tensor; IoError
void write_safetensors(const std::filesystem::path& path, std::span<const ShardRecord> tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace fsdp
