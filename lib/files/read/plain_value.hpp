#pragma once
// Python values that a checkpoint may carry besides tensors.
#include <string>

#include "lib/base/error.hpp"
#include "lib/files/formats/pickle_value.hpp"

namespace fsdp {

/// A value that is whole and is not read: what it needs is refused.
class ValueNotRead : public FormatError {
 public:
  using FormatError::FormatError;
};

/// Checks that `value` consists of plain data only: None, numbers, strings, bytes, collections, torch.Size, dtypes,
/// devices, argparse.Namespace. Nothing else is ever written on into another checkpoint.
/// \param name  of the value, for messages. \throws ValueNotRead naming the class or tensor found in it
void check_plain_value(const PickleValue& value, const std::string& name, const std::string& file);

/// Whether check_plain_value() finds nothing.
bool is_plain_value(const PickleValue& value);

/// True when `value` itself is a tensor, or anything else that torch rebuilds from a storage. No validation.
bool is_tensor_like(const PickleValue& value);

}  // namespace fsdp
