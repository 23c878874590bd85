#pragma once
// Which keys of a configuration have no influence on what is read from it.
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/base/messages/ignored.hpp"

namespace fsdp {

/// Compares what two objects mean. \throws Error for one that is refused
using SameMeaning = std::function<bool(const nlohmann::json& changed)>;

/// Keys of `object`, and of objects in it ("text_config.use_cache"), that can be left out or have any other value
/// without a change of meaning. Found by trying, so that no list of known keys can be out of date: a key is used when
/// another value means something else, or is refused.
std::vector<std::string> unused_keys(const nlohmann::json& object, const SameMeaning& has_same_meaning);

/// Lists keys of the config.json in a model's directory (or of the file itself), and of the generation_config.json
/// beside it, that neither change the model nor its quantization, nor which tokens begin and end a text.
/// \throws as read_model_config()
Ignored ignored_in_config(const std::filesystem::path& directory_or_file);

/// Lists keys of the adapter_config.json in an adapter's directory.
Ignored ignored_in_adapter_config(const std::filesystem::path& directory);

}  // namespace fsdp
