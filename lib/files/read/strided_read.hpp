#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/files/read/tensor_in_file.hpp"

namespace fsdp {

/// read_stored() for views that are not contiguous. Reads the storage in the order in which it lies in the file, so
/// that a whole transposed tensor is read once; a range of it may cost as much.
void read_strided(const File& file, const TensorInFile& stored, std::uint64_t first, std::uint64_t count,
                  std::span<std::byte> out, std::vector<ReadSum>* sums);

}  // namespace fsdp
