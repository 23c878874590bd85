#pragma once
// Numbers of files that somebody else may have written; internal to lib/planning/speed.
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fsdp::detail {

/// \throws FormatError naming `where` and the key, unless it is a number from 0 to 1e18
double number_in(const nlohmann::json& json, const char* key, const std::string& where);
/// \throws FormatError likewise, unless it is an object
const nlohmann::json& object_in(const nlohmann::json& json, const char* key, const std::string& where);

}  // namespace fsdp::detail
