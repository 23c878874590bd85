#pragma once
// The table of a program's options. A row has all properties of one option: CLI11 parses the command line and config
// files by the rows; checkpoints, --describe-options, manual pages, bash completion and docs are made of them.
#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/base/types/named_values.hpp"

namespace fsdp {

/// Which files a text names, if any.
enum class PathKind { none, file, folder, model, data_set, data_sources, validation_sets, chat_template, tasks };

/// The source of a value that is not given when a run goes on from a checkpoint.
enum class AtRestart {
  job,         ///< the option's default; a message names what the job before was given
  saved,       ///< the checkpoint, which keeps the value if it was given
  checkpoint,  ///< what is in the checkpoint (sizes of the model), or nothing: where a run is
  printing     ///< nothing: how a job prints, which no message misses
};

/// The numbers that an option takes. A bound that is not set does not limit them.
struct NumberRange {
  std::optional<double> from = {}, above = {}, to = {}, below = {};

  /// "at least 1", "1 to 64", "at least 0 and less than 1"; empty without bounds
  std::string words() const;
  bool holds(double value) const;
};

/// Properties of an option beside its names, value and help.
struct OptionFacts {
  std::optional<std::string> default_text = {};  ///< in the help; none: the value; "": nothing
  NumberRange range = {};
  bool any_sign = false;             ///< negative numbers are allowed
  bool is_size = false;              ///< a number of bytes, which may have a unit: 64MiB
  std::string choices = {};          ///< "block, none, size:N (N parameters per unit)"; the parser refuses others
  std::string suggestions = {};      ///< for completion: words that are checked later, or that are more than choices
  std::string instead_of_list = {};  ///< end of the message when a whole number is a list
  std::string_view unit = {};        ///< of a number, where the name does not say it
  PathKind path = PathKind::none;
  AtRestart at_restart = AtRestart::job;
  std::string_view depends_on = {};  ///< saved: long name of the option to which the saved value belongs
};

/// Returns "--batch-size,--batch_size" for "batch-size": the tutorials write underscores.
/// \param names  with commas between; names that begin with - or ! stay as they are
std::string spellings(const std::string& names);

/// The rows, as a parser.
class OptionTable : public CLI::App {
 public:
  /// The last value of an option that is given twice wins, because job scripts put the user's arguments after their
  /// own.
  OptionTable(std::string description, std::string name);

  /// Begins a section of the help, which has the rows that follow.
  void section(std::string title) { section_ = std::move(title); }

  /// Adds a row. \param names  as spellings() takes them
  /// \param value  a flag if it is a bool or an optional one; must outlive the table, and has the default
  template <typename Value>
  CLI::Option* add(const std::string& names, Value& value, const std::string& help, OptionFacts facts = {}) {
    if constexpr (std::is_same_v<Value, bool>) {
      return enter(add_flag(spellings(names), value, help), facts);
    } else if constexpr (std::is_same_v<Value, std::optional<bool>>) {
      const auto take = [&value](std::int64_t count) { value = count > 0; };
      return enter(add_flag_function(spellings(names), take, help), facts);
    } else {
      auto* option = add_option(spellings(names), value, help);
      bool has_default = std::is_arithmetic_v<Value>;
      if constexpr (requires { value.empty(); }) has_default = !value.empty();
      if (has_default) option->capture_default_str();
      return enter(option, facts);
    }
  }

  /// Adds a flag that stands for the value of another option.
  CLI::Option* add(const std::string& names, const std::string& help) {
    return enter(add_flag(spellings(names))->description(help), {});
  }

  /// Adds a row whose text, or numbers, a function takes. \param take  \throws UsageError
  template <typename Given = std::string>
  CLI::Option* add_parsed(const std::string& names, const std::type_identity_t<std::function<void(const Given&)>>& take,
                          const std::string& help, const OptionFacts& facts) {
    return enter(add_option_function<Given>(spellings(names), take, help), facts);
  }

  /// Adds a row whose value is one of the names in a table (named_values.hpp), which must outlive this one.
  /// \param value  may be a std::optional, which "" leaves open
  template <typename Choices, typename Value>
  CLI::Option* add_choice(const std::string& names, const Choices& choices, Value& value, const std::string& help,
                          OptionFacts facts = {}) {
    facts.choices = choices_of(choices);
    if constexpr (requires { value.reset(); }) {
      facts.default_text = "";
    } else if (!facts.default_text) {
      facts.default_text = name_of(choices, value);
    }
    const auto parse = [&choices, &value, name = "--" + names.substr(0, names.find(','))](const std::string& text) {
      if constexpr (requires { value.reset(); }) {
        if (text.empty()) return value.reset();
      }
      value = parse_value(choices, text, name);
    };
    return add_parsed(names, parse, help, facts);
  }

  /// Adds --config.
  void add_config(const std::string& help) { facts_[set_config("--config", "", help)] = {.path = PathKind::file}; }

  /// The facts of an option; those of an option that is no row are the defaults.
  const OptionFacts& facts(const CLI::Option* option) const;

  /// Returns JSON with the program's name, description, usage and footer, its options in the order of --help, and the
  /// project's variables.
  std::string describe();

  /// Makes --help a page of 25 lines that has these options alone; --help-all has all.
  /// \param rows  an option as it is typed ("--model DIR") and what it is for, in one line
  void set_short_help(std::vector<std::pair<std::string, std::string>> rows);
  /// The text of --help.
  std::string help_text() const;

  /// Gives the option this value alone, as if the user had.
  void set(const std::string& name, const std::string& value);

  /// Replaces words of the command line, without the program's name, before they are parsed. \throws UsageError
  using Rewrite = std::vector<std::string> (*)(const OptionTable& table, const std::vector<std::string>& line);
  void rewrite_with(Rewrite rewrite) { rewrite_ = rewrite; }
  std::vector<std::string> rewritten(const std::vector<std::string>& line) const {
    return rewrite_ == nullptr ? line : rewrite_(*this, line);
  }

 private:
  CLI::Option* enter(CLI::Option* option, const OptionFacts& facts);

  Rewrite rewrite_ = nullptr;
  std::string section_ = "Options";
  std::vector<std::pair<std::string, std::string>> short_help_;
  std::map<const CLI::Option*, OptionFacts> facts_;
};

}  // namespace fsdp
