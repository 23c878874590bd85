#include "lib/base/core_dump.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>

namespace fsdp {

void forbid_core_dumps() {
  // A core_pattern that is a pipe ignores the limit, so the process is also marked as not dumpable.
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

}  // namespace fsdp
