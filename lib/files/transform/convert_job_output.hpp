#pragma once
// Which format a conversion writes, and the sizes that go with it, as the command line says.
// The conversion proper: what convert_job.hpp does when no other job was asked for.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "lib/files/transform/convert_job.hpp"

namespace fsdp {

enum class OutputKind { torch, safetensors, hf, dcp };

/// "torch", "safetensors", "hf" or "dcp".
std::string_view to_string(OutputKind kind);

struct OutputRequest {
  std::filesystem::path output;
  std::string to;  ///< --to; empty: chosen by the name's suffix, else by the options below
  bool shards_given = false;
  bool max_shard_size_given = false;
};

/// .pt, .pth and .bin are torch, .safetensors is safetensors; any other name is a directory: dcp with --shards, hf with
/// --max-shard-size.
/// \throws UsageError when nothing decides, or an option does not go with the format
OutputKind choose_output_kind(const OutputRequest& request);

/// "500MB" (10^6), "5GiB" (2^30), "1000": bytes. \throws UsageError naming `option` unless it is a positive size
std::uint64_t parse_size(std::string_view text, std::string_view option);

/// Collective over `world`. \throws as run_convert_job()
ExitCode run_conversion(ProcessGroup& world, const ConvertOptions& options, const Logger& log, nlohmann::json& report);

}  // namespace fsdp
