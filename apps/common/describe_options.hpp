#pragma once
// Describes a program's options as data for the manual pages and bash completion that cmake/manual/ makes.
#include <CLI/CLI.hpp>
#include <string>

namespace fsdp {

/// True for `PROGRAM --describe-options` with no other argument. The build uses this option, so --help does not list
/// it.
bool asks_for_description(int argc, char** argv);

/// Returns JSON with the program's name, description, usage and footer, and its options in the order of --help: names,
/// kind of value, number of values, default, group, description and choices. To find the choices, each option is given
/// an invalid word, so the variables that `app` writes to must not be used afterwards. Call after all options have been
/// added.
std::string describe_options(CLI::App& app);

}  // namespace fsdp
