#pragma once
// The project's own environment variables, whose names begin with FSDP_. This is their only list: programs read them by
// it, --describe-options prints it, and the tables of docs/ are made of it.
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// Reader of a variable. Programs take no notice of those of others. The commands are those of --on-event.
enum class VariableReader { programs, commands, jobs, builds, tests };

struct Variable {
  std::string_view name;  ///< a * at its end stands for the ends of several names
  VariableReader reader;
  std::string_view meaning = {};
  std::string_view choices = {};  ///< "native, widened"; empty: not a word of a list
  bool is_number = false;         ///< a number above 0
  std::string_view page = {};     ///< in docs/, which explains more; may be empty
};

std::span<const Variable> variables();

/// "jobs", as docs/ names the tables of variables.
std::string_view name_of(VariableReader reader);

/// The value of a variable of the list in the environment; nullopt if it is not set or empty. \param name  in the list
/// \throws UsageError for a value that the variable does not take
std::optional<std::string> variable_value(std::string_view name);

/// Checks the values of all variables of programs, also of those that this process will not read. \throws UsageError
void check_variables();

/// Names in the environment that begin with FSDP_ and are not in the list.
std::vector<std::string> unknown_variables();

}  // namespace fsdp
