#include "lib/planning/speed/json_number.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"

namespace fsdp::detail {

double number_in(const nlohmann::json& json, const char* key, const std::string& where) {
  constexpr double kMost = 1e18;
  const auto found = json.find(key);
  // Written so that NaN fails the test, too.
  if (found == json.end() || !found->is_number() || !(found->get<double>() >= 0 && found->get<double>() <= kMost)) {
    throw FormatError(where + ": '" + key + "' is missing or no number of at least 0");
  }
  return found->get<double>();
}

const nlohmann::json& object_in(const nlohmann::json& json, const char* key, const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_object()) {
    throw FormatError(where + ": '" + key + "' is missing or no object");
  }
  return *found;
}

}  // namespace fsdp::detail
