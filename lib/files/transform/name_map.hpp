#pragma once
// The tables behind map_names().
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/files/transform/transform.hpp"

namespace fsdp {

/// How a tensor's elements lie on the other side.
enum class NameChange {
  none,
  transposed,         ///< GPT-2's Conv1D keeps [in, out] where torch.nn.Linear has [out, in]
  pairs_to_halves_q,  ///< rows of each head of queries: (0, 1), (2, 3), ... become the two halves of the head
  pairs_to_halves_k,  ///< the same for heads of keys
  halves_to_pairs_q,
  halves_to_pairs_k,
  dropped,  ///< a buffer that the other side computes
};

struct MappedName {
  std::string name;
  NameChange change = NameChange::none;
};

/// Nothing when the map does not know the name.
std::optional<MappedName> mapped_name(NameMap map, std::string_view name);

}  // namespace fsdp
