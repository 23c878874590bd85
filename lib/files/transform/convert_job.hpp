#pragma once
// fsdp-ckpt-convert's work: conversion, --inspect, --verify and --check.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/job_options.hpp"
#include "lib/base/log.hpp"
#include "lib/files/transform/convert_job_input.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

struct ConvertOptions {
  std::vector<std::string> paths;  ///< IN OUT; of --verify A B; of --inspect and --check IN
  bool inspect = false, verify = false, check = false;
  InputOptions input;
  // Output.
  std::string to;
  int shards = 0;              ///< 0: not given
  std::string max_shard_size;  ///< empty: not given
  std::string config_from;
  std::string tokenizer;  ///< of hf: "gpt2" or a directory; empty: config_from's, the input's, or what its run recorded
  bool sync = false, overwrite = false, dry_run = false;
  // How.
  int jobs = 0;
  double tolerance = 0;
  double progress_seconds = 10;  ///< between progress lines where stderr is no terminal
  JobOptions job;
};

/// Does what the options ask for; results go to stdout, or into `report` with --json. Collective over `world`.
/// \return ok, or answer_no: --verify found a difference, --check NaN or infinite elements; bad_input: --check damage
/// \throws UsageError on options that do not go together; what readers and writers throw
ExitCode run_convert_job(ProcessGroup& world, const ConvertOptions& options, const Logger& log, nlohmann::json& report);

}  // namespace fsdp
