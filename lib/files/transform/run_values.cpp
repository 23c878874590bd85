#include "lib/files/transform/run_values.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "lib/files/formats/torch_blob.hpp"

namespace fsdp {

nlohmann::json value_as_json(const Source& source, std::size_t value) {
  const auto loaded = source.value(value);
  const auto* arguments = loaded.value->object_of("argparse", "Namespace");
  const auto& file = source.info().files.empty() ? source.info().directory : source.info().files.front();
  return pickle_to_json(arguments != nullptr && arguments->state != nullptr ? *arguments->state : *loaded.value,
                        file.string());
}

nlohmann::json run_in_values(const Source& source) {
  constexpr std::size_t deepest = 4;
  // Another program's "run" may hold what is not read.
  const auto may_be_ours = [](const SourceValue& value) { return value.name == "run" || value.name == "run.format"; };
  if (std::ranges::none_of(source.values(), may_be_ours)) return nullptr;
  nlohmann::json json;
  for (std::size_t i = 0; i < source.values().size(); ++i) {
    const auto& path = source.values()[i].path;
    const auto* first = path.empty() ? nullptr : std::get_if<std::string>(&path.front());
    if (first == nullptr || *first != "run" || path.size() > deepest) continue;
    auto* place = &json;
    for (std::size_t depth = 1; depth < path.size(); ++depth) {
      const auto* key = std::get_if<std::string>(&path[depth]);
      if (key == nullptr || !(place->is_null() || place->is_object())) return nullptr;  // not ours
      place = &(*place)[*key];
    }
    *place = value_as_json(source, i);
  }
  const auto format = json.is_object() ? json.find("format") : json.end();
  return format != json.end() && *format == "fsdp-run" ? json : nlohmann::json();
}

}  // namespace fsdp
