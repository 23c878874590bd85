#pragma once

namespace fsdp {

/// No core dump of this process from now on, whatever ulimit and core_pattern say, and no debugger of the same user:
/// for a process that holds a secret. A user who may do everything (root) can still read its memory.
void forbid_core_dumps();

}  // namespace fsdp
