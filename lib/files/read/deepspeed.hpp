#pragma once
// DeepSpeed's checkpoints: they are told by name, since their shards are not read.
#include <filesystem>
#include <string>

#include "lib/files/read/source.hpp"

namespace fsdp {

/// Whether these are files that DeepSpeed's ZeRO writes: DIR, or the folder that DIR/latest names.
bool is_deepspeed_folder(const std::filesystem::path& directory);

/// Whether it is one of DeepSpeed's *_model_states.pt.
bool is_deepspeed_file(const Source& source);

/// What to do with such a checkpoint, as the end of a sentence.
std::string deepspeed_advice();

}  // namespace fsdp
