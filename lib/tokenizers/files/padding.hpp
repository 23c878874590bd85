#pragma once
// The token that fills texts to one length.
#include <cstdint>
#include <optional>
#include <string>

#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp {

/// The id of pad_token in the files beside the vocabulary, else of the end mark, which TRL takes then; none: the
/// tokenizer names neither. \param name  of the tokenizer, as of open_tokenizer() \throws IoError; FormatError
std::optional<std::int32_t> padding_of(const std::string& name, const Tokenizer& tokenizer);

}  // namespace fsdp
