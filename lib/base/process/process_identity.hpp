#pragma once
#include <cstdint>
#include <string>

namespace fsdp {

/// Identifies a process on a host, so that processes on any host can tell whether it is still running.
struct ProcessIdentity {
  std::string host;
  std::string boot_id;        ///< boot id of the running kernel; "" when /proc does not have it
  std::string pid_namespace;  ///< process ids are comparable only within one namespace
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;  ///< start time, which differs when a process id is reused
  std::string job;                ///< job of the scheduler: "Slurm job 42", "PBS job 7.head"; "" outside of jobs
  std::string since;              ///< when own() was called: "2026-11-22 10:15:00 UTC"; "" in claims of older versions

  static ProcessIdentity own();
  /// \throws FormatError when `text` is not in the format of to_json()
  static ProcessIdentity from_json(const std::string& text);
  std::string to_json() const;

  /// True only when the process has provably ended: it ran under this kernel and in this pid namespace, and no longer
  /// exists. False also means that its state is unknown.
  bool surely_gone() const { return is_comparable(own()) && has_ended(); }
  /// It ran under the kernel and in the pid namespace of the calling process. \param here  own()
  bool is_comparable(const ProcessIdentity& here) const;
  /// \pre is_comparable(own()). Reads one file
  bool has_ended() const { return state() == kEnded; }
  static constexpr char kEnded = 'X', kUnknownState = '?';
  /// The state of its main thread, by proc(5): R runs, S sleeps, D waits in the kernel for a device, T is stopped, t is
  /// traced; X has ended. \pre is_comparable(own()). Reads one file
  char state() const;
  /// "process 1234 on node7 (Slurm job 42), since 2026-11-22 10:15:00 UTC"
  std::string words() const;
};

}  // namespace fsdp
