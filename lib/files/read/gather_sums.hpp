#pragma once
// Checksums of what several ranks have read.
#include <span>
#include <vector>

#include "lib/files/read/source.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// All ranks' sums on rank 0, nothing elsewhere. Collective.
std::vector<ReadSum> gather_sums(ProcessGroup& group, std::span<const ReadSum> mine);

/// On every rank. Collective.
std::vector<ReadSum> all_gather_sums(ProcessGroup& group, std::span<const ReadSum> mine);

}  // namespace fsdp
