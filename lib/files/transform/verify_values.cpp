#include "lib/files/transform/verify_values.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/json_text.hpp"
#include "lib/files/write/value_json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::json;

void add_plain(const std::string& name, const Json& value, std::map<std::string, Json>& plain) {
  if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) add_plain(name + "." + std::to_string(i), value[i], plain);
  } else if (value.is_object() && value.size() == 1 && value.contains("__tuple__")) {
    add_plain(name, value.at("__tuple__"), plain);
  } else if (value.is_object() && value.size() == 1 && value.contains("__dict__")) {
    for (const auto& item : value.at("__dict__")) {
      const auto& key = item.at(0);
      add_plain(name + "." + (key.is_string() ? key.get<std::string>() : json_text(key)), item.at(1), plain);
    }
  } else if (value.is_object() && value.contains("__object__") && value.contains("state")) {
    // An argparse.Namespace, say, which other formats hold as the dict of its attributes.
    add_plain(name, value.at("state"), plain);
  } else if (value.is_object() && (value.empty() || !value.begin().key().starts_with("__"))) {
    for (const auto& [key, item] : value.items()) add_plain(name + "." + key, item, plain);
  } else {
    plain[name] = value;
  }
}

}  // namespace

std::map<std::string, Json> plain_values(const Source& source) {
  std::map<std::string, Json> plain;
  for (std::size_t i = 0; i < source.values().size(); ++i) {
    const auto& name = source.values()[i].name;
    add_plain(name, Json::parse(value_to_json(*source.value(i).value, name)), plain);
  }
  return plain;
}

}  // namespace fsdp
