#pragma once
// Which python values PyTorch's DCP keeps together: a list without tensors and dicts in it is one item.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/files/formats/pickle_writer.hpp"
#include "lib/files/read/source.hpp"

namespace fsdp::detail {

/// One item: a value of the source by itself, or several as the leaves of one list.
struct ValueGroup {
  std::string name;
  StatePath path;
  /// By list positions from the outermost list inwards; a value by itself has none.
  std::map<std::vector<std::int64_t>, std::size_t> values;
};

/// In the order of each group's first value. A list of which positions are missing stays apart, value by value.
/// Source of the rule: torch 2.11 torch/distributed/checkpoint/_traverse.py (traverse_state_dict).
std::vector<ValueGroup> group_values(const Source& source);

/// Writes the group as one value. \throws UsageError, FormatError as Source::value() and emit_pickle_value()
void emit_group(PickleWriter& pickle, const Source& source, const ValueGroup& group);

}  // namespace fsdp::detail
