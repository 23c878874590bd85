#pragma once
// The job of fsdp-ckpt-convert: conversion, --inspect, --verify, --check and --prune, with a progress display.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/convert/conversion_options.hpp"
#include "lib/base/messages/log.hpp"
#include "lib/base/messages/progress.hpp"
#include "lib/base/types/error.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// Progress as text: "1.20 of 1.46 GiB (82 %)   1.10 GiB/s   eta 0:01". \param seconds  time since the start
std::string progress_text(std::uint64_t bytes_done, std::uint64_t bytes_total, double seconds);

/// Shows such a text after `verb`: "written", "read".
void show_bytes(Progress& progress, const char* verb, std::uint64_t bytes_done, std::uint64_t bytes_total);

/// Runs the job that the options select. Results go to stdout, or into `report` with --json. Collective over `world`.
/// \return ok; answer_no when --verify found a difference or --check elements that are not finite; bad_input when
/// --check found damage, or --prune a checkpoint that it could not read
/// \throws UsageError on options that exclude each other; what readers and writers throw
ExitCode run_convert_job(ProcessGroup& world, const ConvertOptions& options, const Logger& log, nlohmann::json& report);

}  // namespace fsdp
