#include "lib/files/formats/pickle_value.hpp"

namespace fsdp {

const PickleObject* PickleValue::object_of(std::string_view module, std::string_view name) const {
  const auto* held = object();
  return held != nullptr && held->callable->is_global(module, name) ? held : nullptr;
}

bool PickleValue::is_global(std::string_view module, std::string_view name) const {
  const auto* held = global();
  return held != nullptr && held->is(module, name);
}

std::string describe(const PickleValue& value) {
  const auto dotted = [](const PickleGlobal& global) {
    return std::string(global.module.substr(0, 100)) + "." + std::string(global.name.substr(0, 100));
  };
  if (const auto* object = value.object()) return "an object of " + dotted(*object->callable->global());
  if (const auto* global = value.global()) return "the name " + dotted(*global);
  static constexpr const char* names[] = {
      "None",   "a bool",  "an int", "a float", "a big int", "a str",     "a bytes",
      "a list", "a tuple", "a set",  "a dict",  "a name",    "an object", "a reference to a storage"};
  static_assert(std::size(names) == std::variant_size_v<PickleValue::Data>);
  return names[value.data.index()];
}

}  // namespace fsdp
