#pragma once
#include <cstdint>
#include <string>

namespace fsdp {

/// Names one process on one host, so that others, on any host, can tell whether it still lives.
struct ProcessIdentity {
  std::string host;
  std::string boot_id;        ///< of the running kernel; "" where /proc does not tell
  std::string pid_namespace;  ///< process ids mean the same only within one
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;  ///< a process id that is used again has another
  std::string job;                ///< the scheduler's: "Slurm job 42", "PBS job 7.head"; "" outside of jobs
  std::string since;              ///< when own() was called: "2026-11-22 10:15:00 UTC"; "" in claims of older versions

  static ProcessIdentity own();
  /// \throws FormatError when `text` is not what to_json() writes
  static ProcessIdentity from_json(const std::string& text);
  std::string to_json() const;

  /// True only when this process can see that the other one ended: it ran under the same kernel and in the same
  /// namespace, and is gone. False means "cannot tell", too.
  bool surely_gone() const;
  /// "process 1234 on node7 (Slurm job 42), since 2026-11-22 10:15:00 UTC"
  std::string words() const;
};

}  // namespace fsdp
