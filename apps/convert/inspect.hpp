#pragma once
// Describes a checkpoint from its headers alone: --inspect.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// Describes the source as {"format", "producer", "world_size", "files": [...], "metadata": {...}, "tensors": [{"name",
/// "dtype", "shape", "shards", "bytes", "stored_bytes"}], "values": [{"name", "value"}], "totals": {...}}; for an
/// adapter also {"adapter": the fields of adapter_config.json}. Reads no tensor data.
/// \throws FormatError on a damaged value
nlohmann::json inspect(const Source& source);

/// The description as text for people, a tensor per line; ends with a newline.
std::string inspection_table(const nlohmann::json& inspection);

}  // namespace fsdp
