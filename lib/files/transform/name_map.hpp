#pragma once
// The names of tensors on the other side of map_names().
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/files/transform/transform.hpp"

namespace fsdp {

/// How the elements of a tensor are laid out on the other side.
enum class NameChange {
  none,
  transposed,         ///< Conv1D of GPT-2 stores [in, out] where torch.nn.Linear stores [out, in]
  pairs_to_halves_q,  ///< rows of each query head: (0, 1), (2, 3), ... become the two halves of the head
  pairs_to_halves_k,  ///< as above, for key heads
  halves_to_pairs_q,
  halves_to_pairs_k,
  dropped,  ///< a buffer that the other side computes and does not store
};

struct MappedName {
  std::string name;
  NameChange change = NameChange::none;
};

/// The name and change on the other side; nothing when the map does not know the name.
std::optional<MappedName> mapped_name(NameMap map, std::string_view name);

}  // namespace fsdp
