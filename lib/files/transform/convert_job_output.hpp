#pragma once
// The conversion proper: what convert_job.hpp does when no other job was asked for.
#include <nlohmann/json_fwd.hpp>

#include "lib/files/transform/convert_job.hpp"

namespace fsdp {

/// Collective over `world`. \throws as run_convert_job()
ExitCode run_conversion(ProcessGroup& world, const ConvertOptions& options, const Logger& log, nlohmann::json& report);

}  // namespace fsdp
