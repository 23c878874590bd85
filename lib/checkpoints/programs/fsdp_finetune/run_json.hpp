#pragma once
// run.json of a checkpoint: JSON that holds the CRC-32 of its own text.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fsdp {

inline constexpr std::uint64_t kMostRunJsonBytes = 64u << 20;

/// Reads `file`, without its checksum.
/// \throws IoError; FormatError when the file is no run.json, is larger than kMostRunJsonBytes or was changed
nlohmann::json read_run_json(const std::filesystem::path& file);

/// \return the text of a run.json, with its checksum
std::string run_json_text(nlohmann::json run);

}  // namespace fsdp
