#include "lib/base/core_dump.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>

namespace fsdp {

void forbid_core_dumps() {
  // A core_pattern that is a pipe gets its dump whatever the limit says, so the process is marked as well.
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

}  // namespace fsdp
