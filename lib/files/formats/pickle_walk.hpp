#pragma once
// Visits what a pickled value holds.
#include "lib/files/formats/pickle_value.hpp"

namespace fsdp {

/// Calls visit(PickleRef) for everything directly inside `value`: items, keys, arguments, state.
template <typename Visit>
void for_each_child(const PickleValue& value, Visit&& visit) {
  const auto visit_all = [&](const auto& items) {
    for (PickleRef item : items) visit(item);
  };
  const auto visit_pairs = [&](const PickleDict& dict) {
    for (const auto& [key, item] : dict.items) {
      visit(key);
      visit(item);
    }
  };
  if (value.list() != nullptr) visit_all(value.list()->items);
  if (value.tuple() != nullptr) visit_all(value.tuple()->items);
  if (value.set() != nullptr) visit_all(value.set()->items);
  if (value.dict() != nullptr) visit_pairs(*value.dict());
  if (value.persistent() != nullptr) visit(value.persistent()->id);
  if (const auto* object = value.object()) {
    for (PickleRef part : {object->callable, object->args, object->kwargs, object->state}) {
      if (part != nullptr) visit(part);
    }
    visit_all(object->items.items);
    visit_pairs(object->entries);
  }
}

/// The pairs of a dict, an OrderedDict, a defaultdict or a Counter; null for anything else.
const PickleDict* pickled_mapping(const PickleValue& value);

}  // namespace fsdp
