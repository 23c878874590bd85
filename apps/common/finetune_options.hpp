#pragma once
// The options of fsdp-finetune, and where those come from that the command line leaves open.
#include <CLI/CLI.hpp>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/training/checkpoints/restart.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

/// Lists of values that fsdp-memprobe compares; fsdp-finetune takes one value of each.
struct ComparedOptions {
  std::vector<Sharding> shardings{Sharding::full_shard};
  std::vector<c10::ScalarType> precisions{c10::ScalarType::Float};
  std::vector<int> checkpointings{0};  ///< recompute every n-th block; 0: none
};

/// TrainOptions, and parsed values that are converted after parsing or used by the program itself.
struct FinetuneArguments {
  TrainOptions options;
  std::optional<ComparedOptions> compared;  ///< set: lists are taken, the first of each is the option
  double save_minutes = 0;
  std::string time_limit;
  std::string environment;  ///< a seed's option; accepted
  bool print_config = false;
};

void add_finetune_options(CLI::App& app, FinetuneArguments& arguments);

/// Replaces the option's value as if the user had given only this one.
void set_option(CLI::App& app, const std::string& name, const std::string& value);

/// What several spellings of one wish come to: flags that stand for a value, an option without one. After parsing.
/// \throws UsageError when two of them contradict each other
void normalize_spellings(CLI::App& app);

/// Calls normalize_spellings() and parses times into numbers. \throws UsageError
void normalize_finetune_options(CLI::App& app, FinetuneArguments& arguments);

/// Options that the command line leaves open, from what the checkpoint says about its run.
/// \throws UsageError when a size that was given is not the checkpoint's; FormatError
void apply_saved_options(CLI::App& app, TrainOptions& options, const RestartPoint& restart);

/// Options that are still open when weights are fine-tuned: those of the chess fine-tune of CodeLlama.
void apply_fine_tuning_defaults(CLI::App& app, const TrainOptions& options);

/// What a checkpoint keeps of the options: by long name, as text.
nlohmann::json collect_saved_options(const CLI::App& app);

/// All of them as they are now, defaults too, by long name, as text.
std::map<std::string, std::string> collect_all_options(const CLI::App& app);

/// Those that were given, and that a restart neither has from the checkpoint nor has no use for: by long name, as text.
std::map<std::string, std::string> collect_options_of_job(const CLI::App& app);

/// Of the job that saved the checkpoint, those that this one was not given: "--batch-size 2".
std::vector<std::string> options_left_behind(const CLI::App& app, const RestartPoint& restart);

/// Finds models and data sets of the hub in its cache: ORG/NAME becomes a directory.
/// \throws MissingInput with the command that fetches what is not there
void resolve_names(TrainOptions& options);

}  // namespace fsdp
