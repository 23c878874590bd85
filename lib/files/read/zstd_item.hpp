#pragma once
// Items of a DCP data file that were saved through the zstd extension: one torch.save archive each, compressed.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "lib/base/file.hpp"
#include "lib/files/formats/torch_blob.hpp"

namespace fsdp {

struct ZstdItem {
  const File& file;
  std::uint64_t begin_bytes, length_bytes;  ///< of the compressed bytes
};

/// Decompresses the whole item once and copies elements [first, first + count) of its row-major tensor into `out`.
/// Archive and CRC-32 are checked in full. Needs memory for the stream and small buffers, for a view that is not
/// contiguous also for the storage.
/// \param check  gets the view before anything else is read; throws when it is not the one expected
/// \throws FormatError also when the item is longer than its tensor and an archive's overhead
void read_zstd_tensor(const ZstdItem& item, const std::function<void(const TensorView&)>& check, std::uint64_t first,
                      std::uint64_t count, std::span<std::byte> out);

/// The whole archive of a python value, decompressed. \throws FormatError also when it has more than `limit_bytes`
std::string read_zstd_archive(const ZstdItem& item, std::uint64_t limit_bytes);

}  // namespace fsdp
