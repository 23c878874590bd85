#pragma once
// Copies a source into a target's layout: threads and ranks share the pieces, memory stays at a few pieces, and the
// output appears under its own name whole or not at all.
#include <cstdint>
#include <filesystem>
#include <functional>

#include "lib/base/error.hpp"
#include "lib/files/read/source.hpp"
#include "lib/files/write/layout.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct CopyProgress {
  std::uint64_t bytes_done = 0, bytes_total = 0;  ///< of this job's output, all ranks together as far as known
};

struct CopyOptions {
  int jobs = 0;                          ///< threads per rank; 0: the processors this rank may use, at most 4
  std::uint64_t piece_bytes = 1u << 20;  ///< read and written at once by a thread: small enough to stay in its cache
  bool sync = false;                     ///< fsync the output before it gets its name
  bool overwrite = false;                ///< replace an existing output
  std::function<void(const CopyProgress&)> progress;  ///< called from time to time, on rank 0 only, by one thread
  std::function<bool()> stop;  ///< asked between pieces; true ends the copy with Stopped, nothing left behind
};

struct CopyReport {
  std::uint64_t bytes_written = 0;  ///< all files
  std::size_t num_files = 0;
  double seconds = 0;
};

/// Writes to a temporary sibling of `output` (".NAME.tmp-..."), renames it at the end and removes it when anything
/// fails, `stop` says so or another rank fails; the input is only ever read.
/// Collective over `group`: every rank passes the same source, target and options; pieces are dealt out by bytes. Only
/// rank 0 creates, finishes and renames. A rank's error becomes every rank's.
/// \throws FormatError, IoError (full disk: everything written is removed), UsageError when `output` exists
CopyReport copy(const Source& source, Target& target, const std::filesystem::path& output, const CopyOptions& options,
                ProcessGroup& group);

}  // namespace fsdp
