#pragma once
// The Link header field (RFC 8288), by which a server says where a listing goes on.
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

/// The target of the first link in `field` whose relation is `next`, as it stands there (it may be relative); several
/// fields are joined by commas. Names and relations in any case, relations in a list, values as tokens or quoted.
/// \return nothing where no link has this relation
/// \throws FormatError when `field` is no list of links and speaks of `next`: the rest of a listing must not be lost
std::optional<std::string> next_link(std::string_view field);

}  // namespace fsdp
