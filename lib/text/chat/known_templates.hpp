#pragma once
// Chat templates are programs in Jinja. None is run here: their texts are compared with those that are known.
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "lib/text/chat/chat_template.hpp"

namespace fsdp {

/// The format that a template's text writes, where it is one of the known texts: byte by byte, but for line ends
/// (CRLF) and a last one. Compared by FNV-1a of 128 bits.
std::optional<ChatFormat> recognise_template(std::string_view text);

/// The template for `tokenizer`'s conversations.
/// \param asked      a format's name, a file (Jinja, or tokenizer_config.json) or a directory with either; empty or
///                   "auto": the tokenizer's own
/// \param tokenizer  "gpt2" or a directory: chat_template.jinja, else chat_template in tokenizer_config.json (of
/// several
///                   the one called default). bos_token and eos_token come from there, too
/// \throws UsageError when there is none, or `asked` is neither a name nor a file; FormatError naming the file and what
///         the template begins with when it is none of the known ones; IoError
ChatTemplate find_chat_template(const std::string& asked, const std::string& tokenizer);

}  // namespace fsdp
