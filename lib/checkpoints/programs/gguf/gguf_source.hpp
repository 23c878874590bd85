#pragma once
// Reads a GGUF file of llama.cpp under its own names; gguf_weights.hpp makes a model of it.
#include <filesystem>
#include <memory>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// Reads the header only. The metadata of SourceInfo are the key-value pairs of the file. \throws FormatError, IoError
std::unique_ptr<Source> open_gguf(const std::filesystem::path& path);

}  // namespace fsdp
