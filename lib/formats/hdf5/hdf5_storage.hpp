#pragma once
// Checks that the values of a dataset are stored. HDF5 silently reads zeros for values that were never written and for
// those that a virtual dataset takes from a missing file, and it follows links and external storage into any file of
// the user. All functions are called inside an Hdf5Scope.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>
#include "lib/formats/hdf5/hdf5.hpp"

namespace fsdp::detail {

/// Opens a dataset of the file itself: neither a link into another file nor external storage is followed.
/// Virtual datasets are opened when each of their sources has a fixed place.
/// \throws FormatError naming file, dataset and the other file, or the library's reason
Hdf5Dataset open_dataset(const Hdf5File& handle, const std::filesystem::path& file, const std::string& name);

/// Checks that every element was written: contiguous storage exists, no chunk is missing, and a virtual dataset takes
/// each element from a dataset that exists, is large enough and is itself complete. To be called once, before the first
/// read.
/// \throws FormatError naming file and dataset, and the source that is missing
void check_stored(const Hdf5Dataset& dataset, const std::filesystem::path& file, const std::string& name);

/// True when the file is large enough to hold `count` elements; to be checked before memory is allocated for them.
/// Always true for a virtual dataset, which check_stored() judges.
bool plausible_size(const Hdf5Dataset& dataset, const std::filesystem::path& file, std::uint64_t count,
                    std::size_t element_bytes);

/// Checks the stored sizes of chunks, which HDF5 does not: it allocates as many bytes as the file's index states for a
/// chunk, and copies a whole chunk out of them.
class ChunkSizes {
 public:
  ChunkSizes() = default;
  /// Does nothing for datasets that are not chunked.
  /// \throws FormatError when a chunk would be larger than the file can hold
  ChunkSizes(const Hdf5Dataset& dataset, const std::filesystem::path& file);

  /// Checks the chunks of a block; to be called before the block is read.
  /// \param start, count  of the block, as for H5Sselect_hyperslab; each count > 0
  /// \throws FormatError when a chunk is not stored or has an impossible size
  void check(const Hdf5Dataset& dataset, const std::filesystem::path& file, std::span<const hsize_t> start,
             std::span<const hsize_t> count) const;

  /// Number of chunks of a dataset of this shape; 0 when the dataset is not chunked or the shapes do not match.
  std::uint64_t count(std::span<const hsize_t> shape) const;
  /// Size of a stored chunk in bytes; with filters the largest possible one.
  std::uint64_t stored_bytes() const { return stored_bytes_; }
  bool filtered() const { return filtered_; }

 private:
  std::vector<hsize_t> shape_;  ///< of a chunk; empty: nothing to check
  std::uint64_t stored_bytes_ : 63 = 0;
  bool filtered_ : 1 = false;
};

}  // namespace fsdp::detail
