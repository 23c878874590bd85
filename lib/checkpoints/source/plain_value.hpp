#pragma once
// Python values that a checkpoint may hold besides tensors.
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/base/types/error.hpp"
#include "lib/formats/pickle/pickle_value.hpp"

namespace fsdp {

/// The value is undamaged but is not read, because it needs something that is refused.
class ValueNotRead : public FormatError {
 public:
  using FormatError::FormatError;
};

/// Checks that `value` consists of plain data only: None, numbers, strings, bytes, collections, torch.Size, dtypes,
/// devices, argparse.Namespace. Only such values are written into another checkpoint.
/// \param name  of the value, for messages
/// \throws ValueNotRead naming the class or tensor that `value` holds
void check_plain_value(const PickleValue& value, const std::string& name, const std::string& file);

/// True when check_plain_value() throws nothing.
bool is_plain_value(const PickleValue& value);

/// True when `value` itself is a tensor or any other object that PyTorch rebuilds from a storage. Validates nothing.
bool is_tensor_like(const PickleValue& value);

/// The pickle of a JSON value that no pickle of the checkpoint has. \param name  for messages
std::shared_ptr<const PickleDocument> document_of_json(const nlohmann::json& json, const std::string& name);

/// True when `value` is a tensor or has one at any depth. Validates nothing.
bool holds_tensor(const PickleValue& value);

}  // namespace fsdp
