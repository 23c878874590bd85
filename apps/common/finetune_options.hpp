#pragma once
// The options of fsdp-finetune, and the sources of the values that the command line leaves open.
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/common/config_files/axolotl_file.hpp"
#include "apps/common/option_table.hpp"
#include "lib/training/run/restart.hpp"
#include "lib/training/step/train_options.hpp"

namespace fsdp {

/// Lists of values that fsdp-memprobe compares; fsdp-finetune takes one value of each.
struct ComparedOptions {
  std::vector<Sharding> shardings{Sharding::full_shard};
  std::vector<c10::ScalarType> precisions{c10::ScalarType::Float};
  std::vector<int> checkpointings{0};  ///< recompute every n-th block; 0: no recomputation
};

/// TrainOptions, plus parsed values that are converted after parsing or that the program itself uses.
struct FinetuneArguments {
  TrainOptions options;
  std::optional<ComparedOptions> compared;  ///< set: options take lists; the first value counts
  std::string time_limit;
  std::string on_event;     ///< command for a shell; "": none
  std::string environment;  ///< --environment of the tutorials' scripts; accepted without effect
  bool print_config = false;
  AxolotlNotes notes;  ///< of a --config in YAML
};

void add_finetune_options(OptionTable& table, FinetuneArguments& arguments);

/// Replaces names that other trainers have for options of this table, and values of flags that follow a blank
/// ("--bf16 True"); in other_names.cpp.
/// \throws UsageError for a name of something that is another option here, with that option
std::vector<std::string> replace_other_names(const OptionTable& table, const std::vector<std::string>& line);

/// True for a name of other trainers that has no influence here with this value, so that a file with it trains the same
/// without it. \param name  with dashes: "flash-attention"
bool changes_nothing(const std::string& name, const std::string& value);

/// Brings the spellings of an option to one form: flags that stand for a value, and an option without a value. Call
/// after parsing.
/// \throws UsageError when two spellings contradict each other
void normalize_spellings(OptionTable& table);

/// Calls normalize_spellings() and parses times into numbers. \throws UsageError
void normalize_finetune_options(OptionTable& table, FinetuneArguments& arguments);

/// Fills in options that the command line leaves open from the values that the checkpoint keeps of its run.
/// \throws UsageError when a given model size differs from the checkpoint's; FormatError
void apply_saved_options(OptionTable& table, TrainOptions& options, const RestartPoint& restart);

/// Sets the options that are still open when weights are fine-tuned to the values of the chess fine-tune of CodeLlama.
void apply_fine_tuning_defaults(OptionTable& table, const TrainOptions& options);

/// Returns the options that a checkpoint keeps: text by long name.
nlohmann::json collect_saved_options(OptionTable& table);

/// Returns all options with their present values, defaults included: text by long name.
std::map<std::string, std::string> collect_all_options(const OptionTable& table);

/// Returns the given options that a restart must be given again, because the checkpoint does not keep them: text by
/// long name. Paths are absolute.
std::map<std::string, std::string> collect_options_of_job(const OptionTable& table);

/// Returns the same options, and those of what a job prints, as words for a shell, for example "--batch-size 2".
std::vector<std::string> collect_repeated_words(const OptionTable& table);

/// The given options as words for a shell that start such a run again, without those in `left_out` (long names).
std::vector<std::string> collect_given_words(const OptionTable& table, const std::set<std::string>& left_out);

/// Returns the options of the job that saved the checkpoint that this job was not given, as words for a shell.
std::vector<std::string> options_left_behind(const OptionTable& table, const RestartPoint& restart);

/// Finds models and data sets of the Hugging Face hub in the local cache and replaces ORG/NAME by the directory.
/// \throws MissingInput with the command that fetches a missing repository
void resolve_names(TrainOptions& options);

// Groups of options, in training_options.cpp.
void add_optimizer_options(OptionTable& table, TrainOptions& options);
/// Options for adapters, frozen parameters and a child.
void add_method_options(OptionTable& table, TrainOptions& options);
void add_validation_options(OptionTable& table, TrainOptions& options);
/// Adds an option that takes steps or epochs, which a checkpoint keeps.
void add_interval(OptionTable& table, const std::string& name, StepInterval& value, const std::string& help);
/// Replaces --keep-best without a value, or with the value true, by loss, and false by none.
void normalize_validation_options(OptionTable& table);

}  // namespace fsdp
