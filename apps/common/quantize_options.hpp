#pragma once
// --quantize and --double-quant, which three programs have.
#include <CLI/CLI.hpp>
#include <string>

#include "lib/models/config/quantize_config.hpp"

namespace fsdp {

/// \param help   of --quantize: what it is for in this program
/// \param group  of the help
void add_quantize_options(CLI::App& app, QuantizeConfig& options, const std::string& help, const std::string& group);

}  // namespace fsdp
