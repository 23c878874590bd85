#include "lib/files/formats/pickle_walk.hpp"

namespace fsdp {

const PickleDict* pickled_mapping(const PickleValue& value) {
  if (value.dict() != nullptr) return value.dict();
  if (const auto* object = value.object_of("collections", "OrderedDict")) {
    return object->args->tuple()->items.empty() ? &object->entries : nullptr;
  }
  if (const auto* object = value.object_of("collections", "defaultdict")) return &object->entries;
  if (const auto* object = value.object_of("collections", "Counter")) {
    const auto& args = object->args->tuple()->items;
    return args.size() == 1 ? args[0]->dict() : nullptr;
  }
  return nullptr;
}

}  // namespace fsdp
