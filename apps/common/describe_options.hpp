#pragma once
// A program's options as data: what manual pages and completion are made of (cmake/manual/).
#include <CLI/CLI.hpp>
#include <string>

namespace fsdp {

/// `PROGRAM --describe-options`, alone on the command line: an argument for whoever builds or packs, so --help is
/// silent about it.
bool asks_for_description(int argc, char** argv);

/// JSON with the program's name, description, usage and footer, and its options in the order of --help: names, the kind
/// of value, how many, the default, the group, the description, and the words to choose from. These are found by giving
/// each option a word that is none, so what `app` writes to is not to be used afterwards. Call when all options are
/// there.
std::string describe_options(CLI::App& app);

}  // namespace fsdp
