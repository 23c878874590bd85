#pragma once
// A nested object of torch.save as named tensors and values.
#include <string>
#include <vector>

#include "lib/files/formats/dcp.hpp"
#include "lib/files/formats/pickle_value.hpp"
#include "lib/files/formats/torch_blob.hpp"

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
  std::vector<FlatTensor> tensors;  ///< in the object's order
  std::vector<FlatValue> values;
};

/// Opens dicts always; lists that hold a tensor, a dict or a list, and tuples below which a tensor lies; everything
/// else is one value. Empty dicts vanish. This is how DCP flattens a state dict, but for lists of plain lists and
/// tuples. \throws FormatError, in the name of `file`, for a root that is no container, values that are not plain
/// (check_plain_value), tensors that are not supported, and two entries that get one name
FlatObject flatten(const PickleDocument& document, const std::string& file);

}  // namespace fsdp
