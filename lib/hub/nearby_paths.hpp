#pragma once
// Names what lies near a path that is missing, for messages.
#include <filesystem>
#include <string>

namespace fsdp {

/// "; did you mean ./tiny-llama?" where a name of the same folder is close; in a folder of runs also the others:
/// "; runs has the runs a, b"; "" for nothing.
std::string nearby_words(const std::filesystem::path& missing);

/// True where the folder that would hold `path` holds runs of fsdp-finetune, so that no name of a hub is meant.
bool is_among_runs(const std::filesystem::path& path);

}  // namespace fsdp
