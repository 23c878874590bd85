#pragma once
// Validates numbers in JSON files that other programs may have written. Internal to lib/planning/speed.
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fsdp::detail {

/// \throws FormatError naming `where` and the key, unless it is a number from 0 to 1e18
double number_in(const nlohmann::json& json, const char* key, const std::string& where);
/// \throws FormatError naming `where` and the key, unless it is an object
const nlohmann::json& object_in(const nlohmann::json& json, const char* key, const std::string& where);

}  // namespace fsdp::detail
