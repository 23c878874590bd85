#pragma once
// Whether what a dataset claims to hold is stored. HDF5 reads as zeros, without a word, what was never written and what
// a virtual dataset takes from a file that is not there, and it follows links and external storage into any file of the
// user. Call inside an Hdf5Scope.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>
#include "lib/text/token_files/hdf5.hpp"

namespace fsdp::detail {

/// Opens a dataset of the file itself: neither a link into another file nor external storage is followed.
/// Virtual datasets are opened when each of their sources has a fixed place.
/// \throws FormatError naming file, dataset and the other file, or the library's reason
Hdf5Dataset open_dataset(const Hdf5File& handle, const std::filesystem::path& file, const std::string& name);

/// Makes sure that every element was written: contiguous storage is there, no chunk is missing, and a virtual dataset
/// takes each element from a dataset that is there, large enough and itself complete. To be called once, before the
/// first read.
/// \throws FormatError naming file and dataset, and the source that is missing
void check_stored(const Hdf5Dataset& dataset, const std::filesystem::path& file, const std::string& name);

/// True when the file can hold `count` elements: what it claims is not believed before it is allocated for. A virtual
/// dataset, which holds nothing, is judged by check_stored().
bool plausible_size(const Hdf5Dataset& dataset, const std::filesystem::path& file, std::uint64_t count,
                    std::size_t element_bytes);

/// Checks that HDF5 lacks: it allocates as much memory as the file's index says that a chunk has, and copies a whole
/// chunk out of that.
class ChunkSizes {
 public:
  ChunkSizes() = default;
  /// Does nothing for datasets that are not chunked.
  /// \throws FormatError when a chunk would be larger than the file can hold
  ChunkSizes(const Hdf5Dataset& dataset, const std::filesystem::path& file);

  /// To be called before a block is read.
  /// \param start, count  of the block, as for H5Sselect_hyperslab; each count > 0
  /// \throws FormatError when one of its chunks is not stored or has a size that it cannot have
  void check(const Hdf5Dataset& dataset, const std::filesystem::path& file, std::span<const hsize_t> start,
             std::span<const hsize_t> count) const;

  /// How many chunks a dataset of this shape has; 0 when it is not chunked, or when they cannot be counted.
  std::uint64_t count(std::span<const hsize_t> shape) const;
  /// Size of a chunk as stored; the largest one if filters decide.
  std::uint64_t stored_bytes() const { return stored_bytes_; }
  bool filtered() const { return filtered_; }

 private:
  std::vector<hsize_t> shape_;  ///< of a chunk; empty: nothing to check
  std::uint64_t stored_bytes_ : 63 = 0;
  bool filtered_ : 1 = false;
};

}  // namespace fsdp::detail
