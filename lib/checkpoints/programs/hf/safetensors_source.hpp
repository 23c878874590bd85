#pragma once
// Reads a safetensors file, and a folder of them as transformers, peft and others write it.
#include <filesystem>
#include <memory>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// True for a directory with model.safetensors.index.json, model*.safetensors, shard-*.safetensors or
/// adapter_model.safetensors.
bool is_safetensors_directory(const std::filesystem::path& directory);

/// Reads headers only.
/// \param path  a safetensors file, an index .json, or a directory for which is_safetensors_directory() is true
/// \throws FormatError, IoError
std::unique_ptr<Source> open_safetensors(const std::filesystem::path& path);

}  // namespace fsdp
