#pragma once
// JSON that others wrote, from files and servers, is looked over before it is parsed: a parsed value takes up to a
// hundred times the bytes of its text.
#include <string>
#include <string_view>

namespace fsdp {

/// `text`, when no value in it lies deeper than 64 levels and it has at most 4 million values, several times what the
/// largest tokenizers and checkpoints have. Whether it is JSON at all is the parser's business. One pass, no memory.
/// \throws FormatError naming `source` and the byte
std::string_view bounded_json(std::string_view text, const std::string& source);

}  // namespace fsdp
