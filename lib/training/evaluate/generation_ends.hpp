#pragma once
// The tokens with which a model ends what it writes.
#include <cstdint>
#include <filesystem>
#include <vector>

namespace fsdp {

/// eos_token_id, a number or a list, where transformers' generate() looks for it: in generation_config.json of the
/// first directory that has this file or config.json, else in its config.json; of a GGUF file the ends of texts and
/// turns in its keys. Empty where nothing is said. \throws FormatError naming file and key for anything else than ids
std::vector<std::int32_t> generation_ends(const std::vector<std::filesystem::path>& directories);

}  // namespace fsdp
