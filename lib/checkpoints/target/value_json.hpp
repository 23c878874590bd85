#pragma once
// Python values as JSON text, with objects for what JSON lacks: {"__tuple__": [...]}, {"__bytes__": "00ff"},
// {"__set__": [...]}, {"__complex__": [re, im]}, {"__float__": "nan"}, {"__size__": [...]}, {"__dtype__":
// "torch.int64"}, {"__dict__": [[key, value], ...]} for dicts whose keys are not all plain strings, {"__object__":
// "argparse.Namespace", "state": {...}} for other objects (with "args", "items" and "entries" when there are any),
// {"__global__": "module.name"}.
#include <string>

#include "lib/checkpoints/source/source.hpp"
#include "lib/formats/pickle/pickle_value.hpp"

namespace fsdp {

/// The value as one line. \param name  of the value, for messages. \throws RequestError on a reference to a storage
std::string value_to_json(const PickleValue& value, const std::string& name);

/// All values of the source as one JSON object by name, a value per line; "" when there are none.
std::string values_to_json(const Source& source);

}  // namespace fsdp
