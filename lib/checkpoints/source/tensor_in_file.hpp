#pragma once
// Reads a tensor, or a block of one, as it lies in a file.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/base/files/file.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {

/// A view of a storage in a file. The view was checked to lie inside the storage, and the storage to lie inside the
/// file.
struct TensorInFile {
  std::uint64_t storage_begin_bytes = 0;  ///< offset in the file
  TensorView view;                        ///< storage_key is not used
  std::uint32_t storage = 0;              ///< storage number for ReadSum
  std::optional<std::uint32_t> crc32;     ///< of the whole storage, when recorded
};

/// Copies elements [first, first + count) of the row-major view into `out`, which has exactly their bytes. Contiguous
/// elements are read straight into `out`, others through a buffer of at most 1 MiB. Applies lazy conjugation and
/// negation.
/// \param sums  receives the sums of what was read of a storage with a recorded CRC-32; null: nothing is summed
/// \return the CRC-32 of `out` when it was computed
std::optional<std::uint32_t> read_stored(const File& file, const TensorInFile& stored, std::uint64_t first,
                                         std::uint64_t count, std::span<std::byte> out, std::vector<ReadSum>* sums);

/// The view of a row-major tensor that fills its storage.
TensorView contiguous_view(DType dtype, const Shape& sizes);

/// Applies the lazy conjugation and negation of the view, so that `elements` become what PyTorch shows.
void resolve_lazy_bits(const TensorView& view, std::span<std::byte> elements);

/// read_stored() for views that are not contiguous. Reads the storage in file order, so that a whole transposed tensor
/// is read once; a range of a tensor may cost as much.
void read_strided(const File& file, const TensorInFile& stored, std::uint64_t first, std::uint64_t count,
                  std::span<std::byte> out, std::vector<ReadSum>* sums);

}  // namespace fsdp
