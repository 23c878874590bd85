#pragma once
// Dataset `loss_mask` of a token file: for each id 1 where it counts as a target, 0 where it is only read (a prompt).
// It has the shape of the ids.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "lib/text/token_files/hdf5.hpp"
#include "lib/text/token_files/hdf5_storage.hpp"

namespace fsdp::detail {

/// Read on demand. Call inside an Hdf5Scope, closing included.
class LossMask {
 public:
  /// \return nothing where the file has no `loss_mask`
  /// \param shape  of the ids
  /// \throws FormatError naming file and dataset when it has another shape or other elements than integers or truth
  /// values
  static std::optional<LossMask> find(const Hdf5File& handle, const std::filesystem::path& file,
                                      std::span<const hsize_t> shape);

  /// A block of it, row-major.
  /// \param start, count  of the block, as for H5Sselect_hyperslab; each count > 0
  /// \throws FormatError naming file and position of a value that is neither 0 nor 1
  void read(const std::filesystem::path& file, std::span<const hsize_t> start, std::span<const hsize_t> count,
            std::span<std::uint8_t> out) const;

 private:
  Hdf5Dataset dataset_;
  ChunkSizes chunks_;
  bool truth_values_ = false;  ///< of one byte each, as they are in memory
};

}  // namespace fsdp::detail
