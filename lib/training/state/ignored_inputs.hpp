#pragma once
// Lists the parts of a model's folder in Hugging Face's layout that have no influence on what the model computes.
#include <filesystem>

#include "lib/base/messages/ignored.hpp"

namespace fsdp {

/// Keys of config.json and generation_config.json, buffers that follow from the configuration, and files. Reads headers
/// of the weights alone. \param tokenizer  the folder's tokenizer is used
/// \throws FormatError; IoError
Ignored ignored_in_model(const std::filesystem::path& directory, bool tokenizer);

/// Keys of the adapter's configuration, tensors that peft trains with alone, and files of the folder.
Ignored ignored_in_adapter(const std::filesystem::path& directory);

}  // namespace fsdp
