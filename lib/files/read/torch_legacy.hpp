#pragma once
#include <filesystem>
#include <memory>
#include <string_view>

#include "lib/files/read/torch_file.hpp"

namespace fsdp {

/// A file of torch.save(..., _use_new_zipfile_serialization=False): pickles of a magic number, a protocol version, the
/// machine, the object and the sorted storage keys, then every storage as an int64 element count and its elements.
/// \throws FormatError, IoError
std::unique_ptr<TorchFile> open_torch_legacy(const std::filesystem::path& path);

/// True when it starts with a pickled integer.
bool looks_like_torch_legacy(std::string_view first_bytes);

}  // namespace fsdp
