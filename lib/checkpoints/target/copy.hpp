#pragma once
// Copies a source in the layout of a target. Threads and ranks share the pieces, memory holds a few pieces, and the
// output gets its name only when it is complete.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/source/source.hpp"
#include "lib/checkpoints/target/layout.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct CopyProgress {
  std::uint64_t bytes_done = 0, bytes_total = 0;  ///< bytes of the output, of all ranks as far as known
};

struct CopyOptions {
  int jobs = 0;                          ///< threads per rank; 0: the processors that this rank may use, at most 4
  std::uint64_t piece_bytes = 1u << 20;  ///< unit of reading and writing of a thread, small enough for its cache
  bool sync = false;                     ///< fsync the output before it gets its name
  bool overwrite = false;                ///< replace an existing output
  std::string made_by;  ///< for a directory, the run's folder relative to it, which its record keeps; empty: no run
  std::function<void(const CopyProgress&)> progress;  ///< called from time to time, on rank 0 only, by one thread
  std::function<bool()> stop;  ///< checked between pieces; true ends the copy with Stopped and removes the output
};

struct CopyReport {
  std::uint64_t bytes_written = 0;  ///< all files
  std::size_t num_files = 0;
  double seconds = 0;
};

/// Writes to a hidden directory beside `output` (".NAME.tmp-..."), renames it at the end, and removes it when anything
/// fails, `stop` returns true or another rank fails. The input is only read.
/// Collective over `group`: every rank passes the same source, target and options, and the pieces are distributed by
/// bytes. Only rank 0 creates, finishes and renames files. An error of one rank is thrown on every rank.
/// \throws FormatError, IoError (full disk: everything written is removed), RequestError when `output` exists
CopyReport copy(const Source& source, Target& target, const std::filesystem::path& output, const CopyOptions& options,
                ProcessGroup& group);

}  // namespace fsdp
