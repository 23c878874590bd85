#pragma once
// A file of nodes that the next job is to leave out, one per line, as sbatch --exclude=FILE reads.
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/messages/log.hpp"

namespace fsdp {

/// Adds nodes that are not there yet, keeps the other lines, and logs what was added. A problem is a warning.
/// \param file  empty: nothing is done
void exclude_nodes(const std::filesystem::path& file, const std::vector<std::string>& nodes, const Logger& log);

}  // namespace fsdp
