#pragma once
// The options of fsdp-memprobe: those of fsdp-finetune, so that a job's command line can be asked about as it is, and
// its own.
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
  bool trial = false;  ///< started by a search: measures and writes nothing else
};

void add_memprobe_options(CLI::App& app, MemprobeArguments& arguments);

/// Of --search and --no-search the later one counts. After parsing.
void normalize_search(CLI::App& app, MemprobeArguments& arguments);

/// What is compared goes into options; the model's name becomes a directory.
/// After parsing. \throws UsageError, MissingInput
void normalize_memprobe_options(CLI::App& app, MemprobeArguments& arguments);

/// Writes what was chosen as a config file for fsdp-finetune --config, with what a job script needs as comments.
void write_plan(CLI::App& app, const MemprobeArguments& arguments, const MemprobeChoice& choice);

}  // namespace fsdp
