#pragma once
// The python values of a checkpoint in a form in which two formats' nesting does not matter.
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/files/read/source.hpp"

namespace fsdp {

/// Every plain value inside the source's values by its path, elements joined by '.': a container that one format keeps
/// whole and another opens gives the same entries. Empty containers, which some formats cannot hold, are left out.
std::map<std::string, nlohmann::json> plain_values(const Source& source);

}  // namespace fsdp
