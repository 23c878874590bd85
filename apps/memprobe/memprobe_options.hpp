#pragma once
// The options of fsdp-memprobe: all options of fsdp-finetune, so that a job's command line works unchanged, plus its
// own.
#include <CLI/CLI.hpp>
#include <string>

#include "apps/common/finetune_options.hpp"
#include "apps/memprobe/memprobe.hpp"

namespace fsdp {

struct MemprobeArguments {
  FinetuneArguments job;
  MemprobeOptions options;
  std::string plan_file;
  bool no_search = false;
  bool trial = false;  ///< a child process of a search: measures and writes nothing but its report
};

void add_memprobe_options(OptionTable& table, MemprobeArguments& arguments);

/// Lets the later one of --search and --no-search win. Call after parsing.
void normalize_search(OptionTable& table, MemprobeArguments& arguments);

/// Moves the compared values into `options` and replaces the model's name by its directory. Call after parsing.
/// \throws UsageError, MissingInput
void normalize_memprobe_options(OptionTable& table, MemprobeArguments& arguments);

/// Writes the chosen combination as a config file for fsdp-finetune --config, with comments for the job script.
void write_plan(OptionTable& table, const MemprobeArguments& arguments, const MemprobeChoice& choice);

}  // namespace fsdp
