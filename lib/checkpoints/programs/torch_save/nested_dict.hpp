#pragma once
// Flattens a nested object of torch.save into named tensors and values.
#include <string>
#include <vector>

#include "lib/checkpoints/programs/dcp/dcp.hpp"
#include "lib/formats/pickle/pickle_value.hpp"
#include "lib/formats/torch_blob.hpp"

namespace fsdp {

struct FlatTensor {
  std::string name;  ///< path elements joined by '.'
  StatePath path;    ///< dict keys as text, list and tuple positions as integers
  TensorView view;
};
struct FlatValue {
  std::string name;
  StatePath path;
  PickleRef value = nullptr;
};
struct FlatObject {
  std::vector<FlatTensor> tensors;  ///< in the order of the object
  std::vector<FlatValue> values;
};

/// Opens every dict, lists that hold a tensor, a dict or a list, and tuples that hold a tensor at any depth; anything
/// else is one value. Empty dicts vanish. DCP flattens a state dict in this way, except that it does not open lists of
/// plain lists and tuples.
/// \throws FormatError, with `file` in the message, for a root that is no container, values that are not plain
/// (check_plain_value()), tensors that are not supported, and two entries with one name
/// \param may_lack_tensors  else a value that is not plain is refused where the object has no tensor: it may hold them
FlatObject flatten(const PickleDocument& document, const std::string& file, bool may_lack_tensors = false);

}  // namespace fsdp
