#pragma once
// Helpers that the readers of token files share: finding a dataset by name and saying what a file holds instead. Call
// inside an Hdf5Scope.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/text/token_files/hdf5.hpp"

namespace fsdp::detail {

bool has_dataset(const Hdf5File& handle, const char* name);

/// The names in the root group, quoted and cut after some, for a message: "'tokens', 'offsets'".
std::string member_names(const Hdf5File& handle);

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

}  // namespace fsdp::detail
