#pragma once
// The sentences that programs add for the remedies which the library names, with the names of their options.
#include <exception>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/types/error.hpp"

namespace fsdp {

struct RemedyRow {
  Remedy remedy;
  std::string_view
      programs;           ///< with options that the text names and no other program is named before: "fsdp-eval ..."
  std::string_view text;  ///< follows the message, joint included; {} is the subject
};

/// A row for each remedy.
std::span<const RemedyRow> remedy_rows();

/// The sentence for an advice, which begins with its joint to the message; "" without a remedy.
std::string words_of_advice(const Advice& advice);

/// The message of an error; with the sentence for its remedy if it is one of ours.
std::string told(const std::exception& error);

}  // namespace fsdp
