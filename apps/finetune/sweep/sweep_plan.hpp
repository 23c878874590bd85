#pragma once
// The combinations of --sweep, each of which is a command line of its own.
#include <memory>
#include <string>
#include <vector>

#include "apps/common/finetune_options.hpp"
#include "apps/common/option_table.hpp"

namespace fsdp {

struct SweepArguments {
  std::vector<std::string> axes;  ///< "lr=1e-4,3e-4", ...; empty: no sweep
  bool prunes = false;            ///< runs that are worse than others at a validation end there
};

void add_sweep_options(OptionTable& table, SweepArguments& arguments);

/// Joins "--sweep --lr=1,2" to one word, and calls replace_other_names(). \throws UsageError
std::vector<std::string> replace_finetune_words(const OptionTable& table, const std::vector<std::string>& line);

/// The command line of one run, parsed. Not movable, because the table refers to the arguments.
struct ParsedRun {
  ParsedRun();
  ParsedRun(const ParsedRun&) = delete;
  ParsedRun& operator=(const ParsedRun&) = delete;

  FinetuneArguments arguments;
  SweepArguments sweep;  ///< of the line; of no effect
  OptionTable table;
};

/// One combination of values.
struct SweepRun {
  std::string label;               ///< "lr-1e-4,lora-rank-8": the name of its folder
  std::vector<std::string> words;  ///< the options that it has beside those of the line: "--lr=1e-4", ...
};

struct SweepPlan {
  std::vector<std::string> line;  ///< the words of the command line, without other programs' names of options
  std::string program;            ///< as it was started
  std::string name;               ///< of the sweep, below --out-dir: its runs are NAME/LABEL
  bool prunes = false;
  std::vector<SweepRun> runs;

  /// Parses the command line of a run. \throws UsageError naming the run
  std::unique_ptr<ParsedRun> parse(const SweepRun& run) const;
};

/// Reads the axes, and parses the command line of every combination; the last axis changes fastest.
/// \param table      parsed, and normalize_finetune_options() has been called
/// \param line       as the user gave it, without the program's name
/// \throws UsageError for an option that is unknown, cannot vary or is given beside the sweep, a value that its option
///         does not take, or options that contradict a sweep
SweepPlan plan_sweep(const OptionTable& table, const FinetuneArguments& arguments, const SweepArguments& sweep,
                     const std::vector<std::string>& line);

}  // namespace fsdp
