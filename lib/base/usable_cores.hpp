#pragma once
// How many processors this process may use.

namespace fsdp {

/// The cores that the scheduler, the launcher or taskset has left to this process, at least 1.
int usable_cores();

}  // namespace fsdp
