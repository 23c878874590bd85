#pragma once
// How a folder behaves that the nodes of a job share: what checkpoints and their folders rely on.
#include <filesystem>
#include <string>

#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct SharedFolderFacts {
  std::string type;         ///< of the file system, as /proc/self/mountinfo has it: "lustre", "nfs4", "ext4"
  double sync_seconds = 0;  ///< median of fsync() after 1 MiB
  double stat_seconds = 0;  ///< median of stat(), on the slowest rank
  double appears = -1;      ///< seconds after which every rank sees a new file; -1: not within 10 s
  double replaced = -1;  ///< seconds after which every rank sees a file that replaced another by rename(); -1: as above
  int blind = -1;        ///< the first rank that did not see them; -1: all did
  bool locks = false;    ///< flock() of one rank keeps the others out
  std::string lock_error;  ///< why flock() failed; "" when it works
};

/// Collective. Rank 0 makes a folder below `folder` and removes it again. \throws IoError on every rank when rank 0
/// cannot write there
SharedFolderFacts examine_shared_folder(ProcessGroup& group, const std::filesystem::path& folder);

/// The type of the file system of `path` by the text of /proc/self/mountinfo; "" when unknown. \param path  absolute,
/// without links
std::string file_system_type(const std::filesystem::path& path, const std::string& mountinfo);

}  // namespace fsdp
