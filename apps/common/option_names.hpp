#pragma once
// Suggests the nearest option for a misspelled name.
#include <CLI/CLI.hpp>
#include <string>

namespace fsdp {

/// Returns the long option of `app` whose name is closest to `name` ("--lerning-rate" or "lerning-rate"), without
/// leading dashes; "" when none is close.
std::string nearest_option(const CLI::App& app, const std::string& name);

}  // namespace fsdp
