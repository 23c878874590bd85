#pragma once
// Format of the config files of all programs, as --config reads and --print-config writes them.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fsdp {

/// Reads and writes lines `name = value`; '#' begins a comment. A value is a bare word, a text in '...' or "..."
/// without escapes, a text in """...""" with escapes (\n, \r, \t, \", \\, \u00XX), or a list [a, b], which may span
/// several lines.
class ConfigFile : public CLI::Config {
 public:
  /// \throws CLI::FileError naming the line; YamlLine
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

  /// Returns only the options that were given. A default in a config file would count as given and override what a
  /// checkpoint or a kind of training sets instead.
  /// \param default_also  writes the other options as comments, `#name=default`
  std::string to_config(const CLI::App* app, bool default_also, bool write_description,
                        std::string prefix) const override;

  /// Returns the last value of a flag that is given several times.
  std::string to_flag(const CLI::ConfigItem& item) const override;

  /// Returns the line of a file that from_config() has read which sets an option, in any spelling of `names` (without
  /// leading dashes); 0 when no line does.
  virtual std::size_t line_of_option(std::istream& input, const std::vector<std::string>& names) const;
};

/// A config file with a line of YAML, `key: value`.
struct YamlLine : CLI::FileError {
  /// \param line  from 1
  YamlLine(std::size_t line, const std::string& text);

  std::string key, value;  ///< value: "" for a list or a mapping on the lines that follow
};

}  // namespace fsdp
