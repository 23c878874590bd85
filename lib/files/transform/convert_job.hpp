#pragma once
// The job of fsdp-ckpt-convert: conversion, --inspect, --verify, --check and --prune, with a progress display.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/base/job_options.hpp"
#include "lib/base/log.hpp"
#include "lib/base/progress.hpp"
#include "lib/files/transform/convert_job_input.hpp"
#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// Progress as text: "1.20 of 1.46 GiB (82 %)   1.10 GiB/s   eta 0:01". \param seconds  time since the start
std::string progress_text(std::uint64_t bytes_done, std::uint64_t bytes_total, double seconds);

/// Shows such a text after `verb`: "written", "read".
void show_bytes(Progress& progress, const char* verb, std::uint64_t bytes_done, std::uint64_t bytes_total);

struct ConvertOptions {
  std::vector<std::string> paths;  ///< IN OUT; for --verify A B; for --inspect and --check IN; for --prune RUN
  bool inspect = false, verify = false, check = false, prune = false;
  int keep_optimizer = 1;  ///< for --prune
  InputOptions input;
  // Output.
  std::string to;
  int shards = 0;              ///< 0: not given
  std::string max_shard_size;  ///< empty: not given
  std::string config_from;
  std::string tokenizer;      ///< for hf: "gpt2" or a directory; empty: that of --config-from, else tokenizer_of() the
                              ///< input
  std::string pre_tokenizer;  ///< for gguf; empty: by tokenizer.json
  std::string chat_template;  ///< for hf and gguf, its text; empty: that of the run or adapter, else the tokenizer's
  bool sync = false, overwrite = false, dry_run = false;
  std::string made_by;  ///< see CopyOptions::made_by
  // How.
  int jobs = 0;
  double tolerance = 0;
  double progress_seconds = 10;  ///< between progress lines when stderr is no terminal
  JobOptions job;
};

/// Runs the job that the options select. Results go to stdout, or into `report` with --json. Collective over `world`.
/// \return ok; answer_no when --verify found a difference or --check elements that are not finite; bad_input when
/// --check found damage, or --prune a checkpoint that it could not read
/// \throws UsageError on options that exclude each other; what readers and writers throw
ExitCode run_convert_job(ProcessGroup& world, const ConvertOptions& options, const Logger& log, nlohmann::json& report);

}  // namespace fsdp
