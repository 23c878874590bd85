#pragma once
// Finding what fsdp-download or huggingface_hub has fetched; needs no network.
#include <filesystem>
#include <string>

#include "lib/hub/hub_settings.hpp"
#include "lib/hub/repo.hpp"

namespace fsdp {

/// A path that exists is that path. Otherwise "ORG/NAME" or "ORG/NAME@REVISION" (main when none is named) is looked up
/// in the cache's refs and snapshots.
/// \param selection  what of it is needed, as fsdp-download's options: " --include config.json"; empty: all
/// \throws MissingInput saying where it was looked for and, for a name, the fsdp-download command that fetches it;
///         FormatError when the snapshot is a symbolic link
std::filesystem::path find_snapshot(const std::string& name, RepoType type, const HubSettings& settings,
                                    const std::string& selection = {});

}  // namespace fsdp
