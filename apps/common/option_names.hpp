#pragma once
// Options by name: what a name that is none was probably meant to be.
#include <CLI/CLI.hpp>
#include <string>

namespace fsdp {

/// The long option of `app` that is written most like `name` ("--lerning-rate" or "lerning-rate"), without dashes in
/// front; "" when none is near.
std::string nearest_option(const CLI::App& app, const std::string& name);

}  // namespace fsdp
