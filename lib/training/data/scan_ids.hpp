#pragma once
// Finds ids beyond the vocabulary before the first step, in token files that do not tell whose ids they hold.
#include <cstdint>
#include <filesystem>
#include <functional>

#include "lib/base/messages/log.hpp"
#include "lib/base/messages/progress.hpp"
#include "lib/ranks/process_group.hpp"
#include "lib/token_files/token_file.hpp"

namespace fsdp {

struct IdScan {
  std::int64_t records = 0;         ///< the first ones of the file
  std::int64_t vocab_size = 0;      ///< ids are below
  std::filesystem::path directory;  ///< of a TokenCache, where the result for a large file is kept
  bool reads_large = true;          ///< false: a large file is not read, whatever it holds
  bool quiet = false;
};

/// Checks the file and reads all ids of the records, each rank its part, unless an earlier run has: of files of more
/// than 64 M ids the largest id is kept, with the file's path, size and time of change. Files whose notes name a
/// vocabulary are not read: their writer has checked the ids. Collective. \param stop_wanted  polled; ranks may differ
/// \throws FormatError on all ranks, naming file, record, position and id; RuntimeFailure after stop_wanted returned
/// true
void scan_ids(ProcessGroup& world, const TokenFile& file, const IdScan& scan, const Logger& log,
              const std::function<bool()>& stop_wanted);

}  // namespace fsdp
