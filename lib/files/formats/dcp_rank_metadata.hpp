#pragma once
// Checkpoints saved with use_collectives=False: no `.metadata`, but one `__<rank>.metadata` per rank.
#include <filesystem>
#include <string>
#include <vector>

#include "lib/files/formats/dcp.hpp"

namespace fsdp::detail {

/// `__<rank>.metadata` of `directory`, by rank; none when it is no directory.
/// \throws FormatError when a rank between the first and the last is missing
std::vector<std::filesystem::path> rank_metadata_files(const std::filesystem::path& directory);

/// Adds what one rank wrote. What every rank wrote (values, replicated tensors) stays as the first one has it.
/// \throws FormatError, in the name of `file`, when the ranks contradict each other
void merge_rank_metadata(DcpMetadata& all, DcpMetadata rank, const std::string& file);

}  // namespace fsdp::detail
