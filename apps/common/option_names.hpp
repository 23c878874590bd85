#pragma once
// Suggests the nearest option for a misspelled name.
#include <CLI/CLI.hpp>
#include <string>

namespace fsdp {

/// The long option of `app` that is written most like `name` ("--lerning-rate" or "lerning-rate"), without dashes in
/// front; "" when none is near.
std::string nearest_option(const CLI::App& app, const std::string& name);

}  // namespace fsdp
