#include "apps/finetune/sweep/sweep_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string_view>

#include "apps/common/app_main.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/reports/runs/run_summary.hpp"
#include "lib/training/step/plan.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kMostRuns = 1000;

/// A value of an axis: what it adds to the names of runs and to their command lines.
struct AxisValue {
  std::string label;  ///< "lr-1e-4"
  std::vector<std::string> words;
};
using SweepAxis = std::vector<AxisValue>;

/// An axis as the user wrote it.
struct AxisText {
  std::string name;  ///< without dashes before it
  std::string values;
};

/// Splits NAME=VALUES. In a config file, `sweep=lr=1,2` without quotes arrives as two words.
std::vector<AxisText> axes_in(const std::vector<std::string>& words) {
  std::vector<AxisText> axes;
  for (const auto& word : words) {
    const auto begin = std::min(word.find_first_not_of('-'), word.size()), equals = word.find('=');
    if (equals != std::string::npos && equals > begin) {
      axes.push_back({word.substr(begin, equals - begin), word.substr(equals + 1)});
    } else if (!axes.empty() && equals == std::string::npos) {
      axes.back().values += "," + word;
    } else {
      throw UsageError(fmt::format("--sweep {}: NAME=VALUE,VALUE,... was expected, such as lr=1e-4,3e-4", word));
    }
  }
  return axes;
}

/// \throws UsageError
std::vector<std::string> split_values(const AxisText& axis) {
  const char separator = axis.values.find(';') == std::string::npos ? ',' : ';';
  std::vector<std::string> values;
  std::istringstream in(axis.values + separator);
  for (std::string value; std::getline(in, value, separator);) {
    const auto what = fmt::format("--sweep {}={}", axis.name, axis.values);
    if (value.empty()) throw UsageError(what + ": a value is missing");
    if (std::find(values.begin(), values.end(), value) != values.end())
      throw UsageError(fmt::format("{}: {} is there twice", what, value));
    values.push_back(value);
  }
  return values;
}

/// True for an option by whose values runs can differ and still be compared. TF32 is a switch of the whole process.
bool can_vary(const OptionTable& table, const CLI::Option& option) {
  static const std::set<std::string> others{"sweep",         "sweep-prune", "config",   "device",    "dry-run",
                                            "restart-epoch", "eval-every",  "val-data", "val-split", "tf32"};
  if (!option.get_configurable() || option.get_group().empty() || option.get_lnames().empty()) return false;
  const auto& name = option.get_lnames().front();
  const bool prints = table.facts(&option).at_restart == AtRestart::printing;
  return !prints && !others.contains(name) && (is_about_training(name) || name == "gradient-accumulation-steps");
}

/// Reads axes against the table of options.
class AxisReader {
 public:
  AxisReader(const OptionTable& table, const std::vector<std::string>& line) : table_(table) {
    for (const auto& word : line) {
      if (const auto* option = option_of(word)) given_.insert(option);
    }
  }

  /// \throws UsageError
  SweepAxis read(const AxisText& text) {
    SweepAxis axis;
    for (const auto& value : split_values(text)) axis.push_back(read_value(text, value));
    const bool acts = std::any_of(axis.begin(), axis.end(), [](const auto& value) { return !value.words.empty(); });
    if (!acts) throw UsageError(fmt::format("--sweep {}: this option has no effect here", text.name));
    return axis;
  }
  /// Call after an axis. \throws UsageError for an option of two axes
  void end_axis() {
    for (const auto* option : of_axis_) {
      if (!varied_.insert(option).second)
        throw UsageError(fmt::format("--sweep names {} twice: give all values at once", name_of(*option)));
    }
    of_axis_.clear();
  }

 private:
  const CLI::Option* option_of(const std::string& word) const {
    return word.starts_with("--") ? table_.get_option_no_throw(word.substr(0, word.find('='))) : nullptr;
  }
  static std::string name_of(const CLI::Option& option) { return "--" + option.get_lnames().front(); }

  AxisValue read_value(const AxisText& text, const std::string& value) {
    AxisValue found;
    const auto given = "--" + text.name;
    found.words = table_.rewritten({given + "=" + value});
    auto name = text.name;
    for (const auto& word : found.words) {
      if (!word.starts_with("--")) continue;
      const auto* option = option_of(word);
      if (option == nullptr) {
        const auto nearest = nearest_option(table_, given);
        throw UsageError(fmt::format("--sweep {}: is no option{}", text.name,
                                     nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
      }
      check(*option, text.name);
      of_axis_.insert(option);
      if (found.words.size() == 1) name = option->get_lnames().front();
    }
    if (found.words.size() == 1) found.words = words_of(*option_of(found.words.front()), found.words.front());
    found.label = name + "-" + value;
    std::replace_if(
        found.label.begin(), found.label.end(), [](char c) { return c == '/' || c == ' '; }, '_');
    return found;
  }

  void check(const CLI::Option& option, const std::string& given) const {
    if (!can_vary(table_, option))
      throw UsageError(
          fmt::format("--sweep {}: this option cannot vary: runs of a sweep differ in options of the model, "
                      "the steps, the optimizer and the method, and are compared on the same validation",
                      given));
    if (given_.contains(&option))
      throw UsageError(fmt::format("--sweep {} and {} are both given: leave {} out, or add its value to the sweep",
                                   given, name_of(option), name_of(option)));
  }

  /// "--betas=0.9 0.95" are three words.
  static std::vector<std::string> words_of(const CLI::Option& option, const std::string& word) {
    if (option.get_expected_max() <= 1 || option.get_delimiter() != '\0') return {word};
    const auto equals = word.find('=');
    std::vector<std::string> words{word.substr(0, equals)};
    std::istringstream in(word.substr(equals + 1));
    for (std::string part; in >> part;) words.push_back(part);
    return words;
  }

  const OptionTable& table_;
  std::set<const CLI::Option*> given_, of_axis_, varied_;
};

/// All combinations of the axes.
std::vector<SweepRun> combine(const std::vector<SweepAxis>& axes) {
  std::vector<SweepRun> runs(1);
  for (const auto& axis : axes) {
    if (runs.size() * axis.size() > kMostRuns)
      throw UsageError(fmt::format("--sweep makes more than {} runs: vary less", kMostRuns));
    std::vector<SweepRun> more;
    for (const auto& run : runs) {
      for (const auto& value : axis) {
        more.push_back(run);
        more.back().label += (run.label.empty() ? "" : ",") + value.label;
        more.back().words.insert(more.back().words.end(), value.words.begin(), value.words.end());
      }
    }
    runs = std::move(more);
  }
  std::set<std::string> labels;
  for (const auto& run : runs) {
    if (!labels.insert(run.label).second)
      throw UsageError(fmt::format("--sweep: two runs would have the folder {}", run.label));
  }
  return runs;
}

/// Refuses options that no sweep can have.
void check_options(const OptionTable& table, const TrainOptions& options, bool prunes) {
  for (const char* name : {"--save-final-full", "--save-final-hf", "--save-final-adapter", "--trace"}) {
    if (table.get_option(name)->count() > 0)
      throw UsageError(
          fmt::format("{} names one file or folder, which each run of --sweep would write: leave it out, "
                      "and convert the best run's checkpoint (fsdp-ckpt-convert)",
                      name));
  }
  if (const auto& restart = options.restart_checkpoint; restart == "latest" || restart == "best")
    throw UsageError("--restart-checkpoint-file " + restart +
                     " goes without --sweep, whose runs go on from their own latest checkpoints by themselves; give a "
                     "path to start all of them from one checkpoint");
  if (!trains(options)) throw UsageError("--sweep trains, and a negative --max-epochs only evaluates");
  if (!prunes) return;
  if (options.eval_every.never())
    throw UsageError("--sweep-prune compares runs at their validations: give --eval-every STEPS");
  if (options.val_data.empty() && options.val_split == 0)
    throw UsageError("--sweep-prune compares validation losses: give --val-data or --val-split");
}

}  // namespace

void add_sweep_options(OptionTable& t, SweepArguments& a) {
  t.section("Sweeps");
  t.add("sweep", a.axes,
        "train one run after the other, each with one of these values of an option: lr=1e-4,3e-4,1e-3; may be "
        "repeated, for all combinations",
        {.at_restart = AtRestart::checkpoint})
      ->type_name("TEXT")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  t.add("sweep-prune", a.prunes,
        "with --sweep: end a run at a validation where its loss is above the median of two or more earlier runs at the "
        "same step",
        {.at_restart = AtRestart::checkpoint});
}

std::vector<std::string> replace_finetune_words(const OptionTable& table, const std::vector<std::string>& line) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < line.size(); ++i) {
    words.push_back(line[i]);
    const bool names_option =
        i + 1 < line.size() && line[i + 1].starts_with("--") && line[i + 1].find('=') != line[i + 1].npos;
    if (line[i] == "--sweep" && names_option) words.back() += "=" + line[++i].substr(2);
  }
  return replace_other_names(table, words);
}

ParsedRun::ParsedRun() : table("", "fsdp-finetune") {
  add_finetune_options(table, arguments);
  add_sweep_options(table, sweep);
}

std::unique_ptr<ParsedRun> SweepPlan::parse(const SweepRun& run) const {
  auto parsed = std::make_unique<ParsedRun>();
  auto& table = parsed->table;
  auto words = line;
  words.push_back(fmt::format("--run-name={}/{}", name, run.label));
  words.insert(words.end(), run.words.begin(), run.words.end());
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  try {
    table.parse(std::move(words));
    for (const char* of_sweep : {"--sweep", "--sweep-prune"}) table.get_option(of_sweep)->clear();
    normalize_finetune_options(table, parsed->arguments);
    run_directory(parsed->arguments.options);
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("--sweep: run {}: {}", run.label, error.what()));
  } catch (const Error& error) {
    if (error.code() != ExitCode::usage) throw;
    throw UsageError(fmt::format("--sweep: run {}: {}", run.label, error.what()), error.advice());
  }
  parsed->arguments.options.program = program;
  return parsed;
}

SweepPlan plan_sweep(const OptionTable& table, const FinetuneArguments& arguments, const SweepArguments& sweep,
                     const std::vector<std::string>& line) {
  SweepPlan plan;
  plan.prunes = sweep.prunes;
  if (sweep.axes.empty()) {
    if (sweep.prunes) throw UsageError("--sweep-prune goes with --sweep");
    return plan;
  }
  const auto& options = arguments.options;
  check_options(table, options, sweep.prunes);
  plan.line = table.rewritten(line);
  plan.program = options.program;
  plan.name = run_directory(options).lexically_relative(options.out_dir).string();
  AxisReader reader(table, plan.line);
  std::vector<SweepAxis> axes;
  for (const auto& text : axes_in(sweep.axes)) {
    axes.push_back(reader.read(text));
    reader.end_axis();
  }
  plan.runs = combine(axes);
  for (const auto& run : plan.runs) plan.parse(run);
  return plan;
}

}  // namespace fsdp
