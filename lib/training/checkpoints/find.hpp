#pragma once
// Which checkpoint is meant.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/training/checkpoints/checkpoint.hpp"

namespace fsdp {

/// True when `text` is the word "latest", a path that ends in it, or the folder of a run or of its checkpoints, which
/// stands for the latest of them.
bool names_latest(const std::string& text);

/// Checkpoints to try, best first: the one at `text` (a directory, a file or a link to one), and for "latest" (the
/// word, a path that ends in it, or a run's folder) the older ones after it. \param checkpoints  OUT/RUN/checkpoints,
/// where the words "latest" and "best" look \throws IoError when there is nothing at `text`
std::vector<std::filesystem::path> checkpoint_candidates(const std::string& text,
                                                         const std::filesystem::path& checkpoints);

/// A checkpoint of any program whose headers are sound.
/// \param ours_only  it must be a directory of ours: whatever "latest" leads to
/// \throws FormatError saying what it is not; MissingInput
std::shared_ptr<const Checkpoint> open_checkpoint(const std::filesystem::path& path, bool ours_only);

}  // namespace fsdp
