#pragma once
// What the readers of token files share: finding a dataset by name and saying what a file holds instead. Call inside an
// Hdf5Scope.
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/dataset/hdf5.hpp"

namespace fsdp::detail {

bool has_dataset(const Hdf5File& handle, const char* name);

/// The names in the root group, quoted and cut after some, for a message: "'tokens', 'offsets'".
std::string member_names(const Hdf5File& handle);

/// \throws FormatError when it is there but cannot be opened
Hdf5Dataset open_dataset(const Hdf5File& handle, const std::filesystem::path& file, const std::string& name);

/// "floating-point numbers", "strings", ...
std::string describe_elements(H5T_class_t type);

/// The lengths of all dimensions. \throws FormatError
std::vector<hsize_t> dataset_shape(const Hdf5Dataset& dataset, const std::filesystem::path& file,
                                   const std::string& name);

/// Bytes of an element, and whether every value of the stored type is an id in [0, 2^31).
struct IntegerType {
  std::size_t size_bytes;
  bool fits_int32;
};
/// \return size_bytes 0 when the elements are no integers; `found` then says what they are
IntegerType integer_type(const Hdf5Dataset& dataset, const std::filesystem::path& file, const std::string& name,
                         std::string& found);

/// True when the file can hold `count` elements: what it claims is not believed before it is allocated for.
bool plausible_size(const Hdf5Dataset& dataset, const std::filesystem::path& file, std::uint64_t count,
                    std::size_t element_bytes);

/// What HDF5 leaves unchecked: it copies a whole chunk out of a buffer that has the size which the file's index names.
class ChunkSizes {
 public:
  ChunkSizes() = default;
  /// Does nothing for datasets that are not chunked, and for filtered ones, whose chunks have any size.
  ChunkSizes(const Hdf5Dataset& dataset, const std::filesystem::path& file);

  /// To be called before a block is read.
  /// \param start, count  of the block, as for H5Sselect_hyperslab; each count > 0
  /// \throws FormatError when one of its chunks has another size than chunks have
  void check(const Hdf5Dataset& dataset, const std::filesystem::path& file, std::span<const hsize_t> start,
             std::span<const hsize_t> count) const;

 private:
  std::vector<hsize_t> shape_;  ///< of a chunk; empty: nothing to check
  std::uint64_t bytes_ = 0;     ///< of a chunk
};

}  // namespace fsdp::detail
