#pragma once
// GGUF files, in which llama.cpp keeps models: key-value pairs, then tensors. Format: github.com/ggml-org/ggml,
// docs/gguf.md, version 3, little-endian.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/base/types/dtype.hpp"
#include "lib/formats/gguf_metadata.hpp"
#include "lib/formats/shard_record.hpp"

namespace fsdp {

/// An element type of ggml. Rows of a tensor are stored in blocks of elements. Source: ggml.h (ggml_type),
/// ggml-common.h
struct GgufType {
  std::uint32_t number;
  std::string_view name;
  std::uint64_t block_elements, block_bytes;
  std::optional<DType> dtype = {};  ///< set when a block is one element of this type
};
/// \return null when there is no such type
const GgufType* find_gguf_type(std::string_view name);
const GgufType* find_gguf_type(DType dtype);

using GgufValue = std::variant<bool, std::uint32_t, float, std::string, std::vector<std::string>, std::vector<float>,
                               std::vector<std::int32_t>>;
/// A key with its value. Keys and the order in which llama.cpp's converter writes them: gguf-py, constants.py.
struct GgufEntry {
  std::string key;
  GgufValue value;
};

/// A tensor that a file will hold.
struct GgufItem {
  std::string name;
  const GgufType* type;
  Shape shape;  ///< in PyTorch's order; the format has the reverse
};
/// A file of which everything but the data of the tensors is known.
struct GgufPlan {
  std::string head;                    ///< the file up to the data
  std::vector<std::uint64_t> offsets;  ///< offset in the file of each tensor's data
  std::uint64_t size_bytes = 0;        ///< of the whole file
};
/// Tensors keep their order, and each begins at a multiple of 32 bytes.
GgufPlan plan_gguf(std::span<const GgufItem> tensors, std::span<const GgufEntry> entries);

/// A tensor in a file.
struct GgufTensor {
  std::string name;
  const GgufType* type;
  Shape shape;  ///< in PyTorch's order
  std::uint64_t begin_bytes = 0, size_bytes = 0;
};
struct GgufHeader {
  /// The values as texts; of an array the first elements and their number.
  std::map<std::string, std::string> metadata;
  std::vector<GgufTensor> tensors;
};
/// Reads and validates the header: every tensor lies inside the file. \throws FormatError, IoError
GgufHeader read_gguf_header(const File& file);

}  // namespace fsdp
