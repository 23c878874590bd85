#pragma once
// run.json of one of our checkpoints, brought along into a DCP directory of another world size.
#include <filesystem>
#include <span>
#include <string>

#include "lib/files/write/dcp_target.hpp"

namespace fsdp {

/// The same run.json with another world size and other files, and the checksum that goes with them.
/// \param file  for messages. \throws FormatError when `text` is no run.json or its checksum is wrong
std::string updated_run_json(const std::string& text, const std::string& file, int world_size,
                             std::span<const WrittenFile> files);

/// When `directory` has a run.json, makes the target write it, brought up to date. \throws FormatError, IoError
void carry_run_json(DcpTargetOptions& options, const std::filesystem::path& directory);

}  // namespace fsdp
