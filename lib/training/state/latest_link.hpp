#pragma once
// checkpoints/latest: a symlink to the checkpoint that a run resumes from.
#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp {

/// Replaces the link `latest`. \throws IoError, as on file systems without links
void point_latest_to(const std::filesystem::path& checkpoints, std::int64_t step);

/// Points `latest` to the newest checkpoint of proven_step or before, if it leads to `newest_step` and that is later.
/// \return where `latest` leads now; "" when nothing was changed
/// \throws IoError
std::string roll_back_latest(const std::filesystem::path& checkpoints, std::int64_t newest_step,
                             std::int64_t proven_step);

}  // namespace fsdp
