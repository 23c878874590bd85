#pragma once
// Checks of numeric option values, shared by all programs.
#include <CLI/CLI.hpp>
#include <string>

namespace fsdp {

/// Allows negative numbers for this option.
CLI::Option* may_be_negative(CLI::Option* option);

/// When the option, which takes one number, is given a list, the error message ends with `instead`.
CLI::Option* says_of_lists(CLI::Option* option, const std::string& instead);

/// Makes every numeric option of `app` refuse, with its name in the message, values that are not numbers of its type:
/// nan, infinities, integers that do not fit into 64 bits (which CLI11 would truncate silently), and negative values
/// unless may_be_negative() allows them. Whole numbers are decimal, also with leading zeros. Call after all options
/// have been added.
void check_numbers(CLI::App& app);

}  // namespace fsdp
