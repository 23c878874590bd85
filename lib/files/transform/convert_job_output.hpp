#pragma once
// Chooses the output format of a conversion and writes it.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "lib/files/transform/convert_job.hpp"

namespace fsdp {

enum class OutputKind { torch, safetensors, hf, dcp, megatron, gguf };

/// "torch", "safetensors", "hf", "dcp", "megatron" or "gguf".
std::string_view to_string(OutputKind kind);

struct OutputRequest {
  std::filesystem::path output;
  std::string to;  ///< --to; empty: chosen by the suffix of the name, else by the options below
  bool shards_given = false;
  bool max_shard_size_given = false;
};

/// Chooses the format: torch for .pt, .pth and .bin, safetensors for .safetensors, gguf for .gguf; any other name is a
/// directory, dcp with --shards and hf with --max-shard-size.
/// \throws UsageError when nothing decides, or when an option does not go with the format
OutputKind choose_output_kind(const OutputRequest& request);

/// Parses a size in bytes such as "500MB" (10^6), "5GiB" (2^30) or "1000". \throws UsageError naming `option` unless
/// the size is positive
std::uint64_t parse_size(std::string_view text, std::string_view option);

/// Runs the conversion for run_convert_job(). Collective over `world`. \throws as run_convert_job()
ExitCode run_conversion(ProcessGroup& world, const ConvertOptions& options, const Logger& log, nlohmann::json& report);

}  // namespace fsdp
