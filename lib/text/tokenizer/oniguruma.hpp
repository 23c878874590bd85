#pragma once
// Patterns of tokenizer.json, which are in Oniguruma's syntax, for PCRE2.
#include <string>
#include <string_view>

namespace fsdp {

/// The same pattern for PCRE2 with PCRE2_UTF and PCRE2_UCP. Only what both read alike passes, with \s and \S spelled
/// out as Unicode's White_Space: PCRE2's own \s also takes U+180E, which has not been white space since Unicode 6.3.
/// \param where  names the pattern in errors
/// \throws FormatError naming the first construct that is not supported and its place
std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where);

/// A pattern that matches exactly `text`.
std::string pcre2_literal(std::string_view text);

}  // namespace fsdp
