#pragma once
// Checks of numeric option values, shared by all programs.
#include <CLI/CLI.hpp>
#include <string>

namespace fsdp {

/// Allows negative numbers for this option.
CLI::Option* may_be_negative(CLI::Option* option);

/// Where a list is given for this option, which takes one number, the message ends with `instead`.
CLI::Option* says_of_lists(CLI::Option* option, const std::string& instead);

/// From now on every option that takes a number refuses, by its name, what is none: nan, infinities, more than fits
/// into 64 bits (which would be cut without a word), and what is negative unless may_be_negative() says otherwise. A
/// whole number is decimal, leading zeros or not. Call when all options are there.
void check_numbers(CLI::App& app);

}  // namespace fsdp
