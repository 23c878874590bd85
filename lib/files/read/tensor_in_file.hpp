#pragma once
// A tensor, or a block of one, as it lies in a file.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/files/formats/torch_blob.hpp"
#include "lib/files/read/source.hpp"

namespace fsdp {

/// A view of a storage in some file. The view was checked to lie inside the storage, the storage to lie inside the
/// file.
struct TensorInFile {
  std::uint64_t storage_begin_bytes = 0;  ///< in the file
  TensorView view;                        ///< the key is not used
  std::uint32_t storage = 0;              ///< for ReadSum
  std::optional<std::uint32_t> crc32;     ///< of the whole storage, where recorded
};

/// Copies elements [first, first + count) of the row-major view into `out`, which has exactly their bytes; what is
/// contiguous goes straight there, the rest through a buffer of at most 1 MiB. Lazy conjugation and negation are done.
/// \param sums  receives what was read of a storage with a recorded CRC-32; null: nothing is summed
/// \return the CRC-32 of `out` when it was summed
std::optional<std::uint32_t> read_stored(const File& file, const TensorInFile& stored, std::uint64_t first,
                                         std::uint64_t count, std::span<std::byte> out, std::vector<ReadSum>* sums);

/// A row-major tensor that fills its storage.
TensorView contiguous_view(DType dtype, const Shape& sizes);

/// Resolves the view's lazy conjugation and negation: `elements` become what PyTorch shows.
void resolve_lazy_bits(const TensorView& view, std::span<std::byte> elements);

/// read_stored() for views that are not contiguous. Reads the storage in the order in which it lies in the file, so
/// that a whole transposed tensor is read once; a range of it may cost as much.
void read_strided(const File& file, const TensorInFile& stored, std::uint64_t first, std::uint64_t count,
                  std::span<std::byte> out, std::vector<ReadSum>* sums);

}  // namespace fsdp
