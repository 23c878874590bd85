#pragma once
// Config files of all programs: what --config reads and --print-config writes.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fsdp {

/// Lines `name = value`, comments from a '#' on. A value is a bare word, a text in '...' or "..." taken as it is, a
/// text in """...""" with escapes (\n, \r, \t, \", \\, \u00XX), or several: [a, b], over several lines if need be.
class ConfigFile : public CLI::Config {
 public:
  /// \throws CLI::FileError naming the line
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

  /// The options that were given, and nothing else: a default in a config file would count as given, and win over what
  /// a checkpoint or a kind of training has in its place.
  /// \param default_also  the others as comments, `#name=default`
  std::string to_config(const CLI::App* app, bool default_also, bool write_description,
                        std::string prefix) const override;

  /// A flag that is named twice has its last value.
  std::string to_flag(const CLI::ConfigItem& item) const override;
};

/// The line of a config file on which an option stands, in any spelling of `names` (without dashes in front); 0: on
/// none.
std::size_t line_of_option(std::istream& input, const std::vector<std::string>& names);

}  // namespace fsdp
