#pragma once
#include <nlohmann/json_fwd.hpp>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// The config.json of the model in a GGUF file: sizes and rotary positions from the keys of its architecture,
/// vocabulary, biases and a head of its own from its tensors, ids of marks from the tokenizer's keys. Architectures are
/// those that
/// --to gguf writes.
/// \param gguf      as open_source() returns it
/// \param metadata  read_gguf_metadata() of the file
/// \throws FormatError naming the file and a key that is missing, not known or of another type or value than is read
nlohmann::json config_of_gguf(const Source& gguf, const nlohmann::json& metadata);

}  // namespace fsdp
