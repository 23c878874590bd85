#pragma once
// Unicode's composed normal form NFC (UAX #15), which some vocabularies expect.
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizers/vocabulary/added_tokens.hpp"

namespace fsdp {

/// Returns the text in NFC. Bytes that are not valid UTF-8 stay unchanged.
std::string to_nfc(std::string_view text);

/// For each byte of `composed`, which is to_nfc(text), returns the range of `text` that it comes from: a character, or
/// several that were composed or reordered together.
std::vector<TextRange> nfc_sources(std::string_view text, std::string_view composed);

}  // namespace fsdp
