#pragma once
// Unicode's composed form (UAX #15): what some vocabularies are made of.
#include <string>
#include <string_view>
#include <vector>

#include "lib/text/tokenizer/added_tokens.hpp"

namespace fsdp {

/// The text composed canonically (NFC). What is no valid UTF-8 stays as it is.
std::string to_nfc(std::string_view text);

/// For each byte of `composed`, which is to_nfc(text), the part of `text` that it comes from: a character, or several
/// that were composed or put into another order together.
std::vector<TextRange> nfc_sources(std::string_view text, std::string_view composed);

}  // namespace fsdp
