#pragma once
// Reads PyTorch's distributed checkpoints (dcp.hpp states the format).
#include <cstddef>
#include <filesystem>
#include <memory>

#include "lib/checkpoints/source/source.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {

/// True for a directory that has the DCP metadata of all ranks or of one.
bool is_dcp_directory(const std::filesystem::path& directory);

/// Reads the metadata only and checks that all chunks and data files are there. \throws FormatError, IoError
std::unique_ptr<Source> open_dcp(const std::filesystem::path& directory);

/// The archive of value number `value` of a source that open_dcp() made. Unlike Source::value(), it may hold tensors
/// and classes, which are to be looked at and not to be written. \throws FormatError, IoError
std::shared_ptr<TorchBlob> open_dcp_value(const Source& dcp, std::size_t value);

}  // namespace fsdp
