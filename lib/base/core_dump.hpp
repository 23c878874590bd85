#pragma once

namespace fsdp {

/// Disables core dumps of this process, regardless of ulimit and core_pattern, and debuggers of the same user. For a
/// process that holds a secret. root can still read its memory.
void forbid_core_dumps();

}  // namespace fsdp
