#include "lib/engine/sharding/wrap.hpp"

#include <charconv>
#include <map>

#include "lib/base/types/error.hpp"

namespace fsdp {

WrapPolicy parse_wrap(std::string_view text, std::string_view option) {
  if (text == "block") return {WrapPolicy::Kind::block, 0};
  if (text == "none") return {WrapPolicy::Kind::none, 0};
  if (text.substr(0, 5) == "size:") {
    const auto number = text.substr(5);
    std::int64_t size = 0;
    const auto result = std::from_chars(number.data(), number.data() + number.size(), size);
    if (result.ec == std::errc() && result.ptr == number.data() + number.size() && size > 0) {
      return {WrapPolicy::Kind::size, size};
    }
  }
  throw RequestError(std::string(option) + " is '" + std::string(text) + "', choose from " + kWrapChoices);
}

std::string to_string(const WrapPolicy& policy) {
  if (policy.kind == WrapPolicy::Kind::block) return "block";
  if (policy.kind == WrapPolicy::Kind::none) return "none";
  return "size:" + std::to_string(policy.size_elements);
}

std::vector<std::vector<int>> make_units(const std::vector<WrapInput>& parameters, const WrapPolicy& policy) {
  std::vector<std::vector<int>> units(1);
  std::map<int, std::size_t> unit_of_block;
  std::int64_t open_elements = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    if (parameter.block < 0 || policy.kind == WrapPolicy::Kind::none) {
      units[0].push_back(static_cast<int>(i));
      continue;
    }
    const auto known = unit_of_block.find(parameter.block);
    if (known != unit_of_block.end()) {  // its own parameters one after the other; adapters after all blocks
      open_elements += known->second + 1 == units.size() ? parameter.elements : 0;
      units[known->second].push_back(static_cast<int>(i));
      continue;
    }
    if (units.size() == 1 || policy.kind == WrapPolicy::Kind::block || open_elements >= policy.size_elements) {
      units.emplace_back();
      open_elements = 0;
    }
    unit_of_block.emplace(parameter.block, units.size() - 1);
    open_elements += parameter.elements;
    units.back().push_back(static_cast<int>(i));
  }
  return units;
}

}  // namespace fsdp
