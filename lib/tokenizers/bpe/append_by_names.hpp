#pragma once
// Encodes a text in which names of tokens stand for these tokens, with the range of each id.
#include <cstddef>
#include <functional>
#include <string_view>

#include "lib/tokenizers/vocabulary/added_tokens.hpp"
#include "lib/tokenizers/vocabulary/tokenizer.hpp"

namespace fsdp::detail {

/// Appends the ids of a part of a text that contains no name, and the range of each id. \param begin  place of the part
using AppendPart = std::function<void(std::string_view part, std::size_t begin)>;

/// Appends the ids of the names in `text`, and between them what `append_part` appends. \param out  also its
/// \param is_plain  as TokenNames::split() takes it
void append_by_names(const TokenNames& names, std::string_view text, const PlainTest& is_plain, AlignedIds& out,
                     const AppendPart& append_part);

}  // namespace fsdp::detail
