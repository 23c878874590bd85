#pragma once
// Writes values read from one pickle into another.
#include <string>

#include "lib/files/formats/pickle_value.hpp"
#include "lib/files/formats/pickle_writer.hpp"

namespace fsdp {

enum class PickleStyle {
  faithful,  ///< every object of the class that it was; what protocol 2 cannot tell apart (frozenset literals) aside
  /// What torch.load(weights_only=True) takes: defaultdict, argparse.Namespace and types.SimpleNamespace become dicts,
  /// frozensets sets.
  weights_only
};

/// Appends `value`, as one value on the pickle's stack.
/// \param name  for messages
/// \throws UsageError on a reference to a storage, and on a class that the style does not allow
void emit_pickle_value(PickleWriter& pickle, const PickleValue& value, PickleStyle style, const std::string& name);

}  // namespace fsdp
