#pragma once
// --quantize and --double-quant, shared by three programs.
#include <CLI/CLI.hpp>
#include <string>

#include "lib/models/config/quantize_config.hpp"

namespace fsdp {

/// \param help   help text of --quantize: its purpose in this program
/// \param group  section of the help
void add_quantize_options(CLI::App& app, QuantizeConfig& options, const std::string& help, const std::string& group);

}  // namespace fsdp
