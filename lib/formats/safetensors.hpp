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

#include "lib/base/files/file.hpp"
#include "lib/base/types/dtype.hpp"
#include "lib/formats/shard_record.hpp"

namespace fsdp {

/// The type and shape of a tensor whose element type DType lacks; some of these types are narrower than a byte. Such a
/// tensor is read as bytes, and gets this type and shape back when it is written to safetensors.
struct OtherType {
  std::string name;
  Shape shape;
};

struct SafetensorsEntry {
  DType dtype = DType::f32;          ///< u8 for a tensor of another type
  Shape shape;                       ///< number of bytes for a tensor of another type
  std::uint64_t begin = 0, end = 0;  ///< offsets in the file (not in its data section)
  std::optional<OtherType> other = {};
};

/// Reads one file. Const member functions may be called from several threads.
class SafetensorsReader {
 public:
  /// Reads and validates the header: sizes match the shapes, and the ranges tile the data section inside the file.
  /// \throws FormatError, IoError
  explicit SafetensorsReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, SafetensorsEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Copies rows [first_row, first_row + num_rows) of dim 0 into `out`, which has exactly their bytes. A scalar has
  /// one row. \throws std::invalid_argument on an unknown name, rows outside the tensor or a wrong `out`
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
/// A safetensors file, of which everything but the data of the tensors is known.
struct SafetensorsPlan {
  std::string head;                    ///< the file up to the data
  std::vector<std::uint64_t> offsets;  ///< offset in the file of each tensor's data
  std::uint64_t size_bytes = 0;        ///< of the whole file
};
/// Tensors are ordered and the header is padded as the reference writer does: by type, largest first, then by name; the
/// header to a multiple of 8 bytes.
/// \throws RequestError on a repeated or complex tensor
SafetensorsPlan plan_safetensors(std::span<const SafetensorsItem> tensors,
                                 const std::map<std::string, std::string>& metadata);

/// Writes whole tensors (zero offsets, `sizes` equal to the global shape) to a temporary file and renames it to `path`.
/// Order and padding are those of plan_safetensors().
/// \throws RequestError on a partial, repeated or complex tensor; IoError
void write_safetensors(const std::filesystem::path& path, std::span<const ShardRecord> tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace fsdp
