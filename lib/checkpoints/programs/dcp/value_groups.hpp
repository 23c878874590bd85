#pragma once
// Which values of a source are one item of a DCP directory: PyTorch keeps a list without tensors and dicts as one.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/checkpoints/source/source.hpp"
#include "lib/formats/pickle/pickle_writer.hpp"

namespace fsdp::detail {

/// One DCP item: a single value of the source, or several values as the leaves of one list. PyTorch keeps a list
/// without tensors and dicts as one item.
struct ValueGroup {
  std::string name;
  StatePath path;
  /// Keys are list positions from the outermost list inwards; the key of a single value is empty.
  std::map<std::vector<std::int64_t>, std::size_t> values;
};

/// Groups the values of the source, in the order of the first value of each group. The values of a list with missing
/// positions are groups of their own.
/// Source: torch 2.11 torch/distributed/checkpoint/_traverse.py (traverse_state_dict).
std::vector<ValueGroup> group_values(const Source& source);

/// Writes the group as one value. \throws RequestError, FormatError like Source::value() and emit_pickle_value()
void emit_group(PickleWriter& pickle, const Source& source, const ValueGroup& group);

}  // namespace fsdp::detail
