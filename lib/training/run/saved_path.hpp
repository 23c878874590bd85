#pragma once
// Paths in checkpoints, from which a run goes on in whatever folder it is started.
#include <optional>
#include <string>

namespace fsdp {

/// `path` as a checkpoint keeps it: absolute; the original of a copy below FSDP_STAGED, the folder of the nodes to
/// which job scripts copy inputs; as it stands where only the working folder's name is no UTF-8, which strings in
/// checkpoints must be. Nothing when `path` itself is none.
std::optional<std::string> saved_path(const std::string& path);

}  // namespace fsdp
