#pragma once
// Unicode's composed form (UAX #15): what some vocabularies are made of.
#include <string>
#include <string_view>

namespace fsdp {

/// The text composed canonically (NFC). What is no valid UTF-8 stays as it is. \throws std::bad_alloc
std::string to_nfc(std::string_view text);

}  // namespace fsdp
