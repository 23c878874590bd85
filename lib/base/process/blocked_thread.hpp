#pragma once
// Tells what a thread of this process waits for in the kernel, by /proc/self/task/TID/syscall (proc(5)).
#include <sys/types.h>

#include <string>

namespace fsdp {

/// Watches the thread that makes this object; any one thread may ask.
class BlockedThread {
 public:
  BlockedThread();
  /// Call every second or so. "fsync of /scratch/run/step-8/0.distcp" when the thread has been in the same access to a
  /// file since the call before; "" otherwise, and where the kernel does not tell.
  std::string look();

 private:
  pid_t thread_;
  std::string last_;  ///< the kernel's line at the call before
};

namespace detail {
/// The file and what is done with it, in a line of /proc/self/task/TID/syscall; "" for other system calls.
/// \param descriptors  the folder of links to open files
std::string file_access(const std::string& line, const std::string& descriptors);
}  // namespace detail
}  // namespace fsdp
