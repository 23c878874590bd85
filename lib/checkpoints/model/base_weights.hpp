#pragma once
// The weights that adapters in a checkpoint of fsdp-finetune were trained for: its run.json has a mark of them.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lib/ranks/process_group.hpp"

namespace fsdp {

/// The part that elements add to the mark of weights: a sum over elements, in any order, of a hash of value and place.
/// Not for keeping secrets. \param param  number of the parameter. \param first  number of the first element in it
/// \param item_bytes  of an element: 1, 2, 4 or 8. Bytes are as the weights are stored
std::uint64_t mark_of_elements(std::size_t param, std::uint64_t first, std::span<const std::byte> elements,
                               std::size_t item_bytes);

/// The mark as run.json has it ("weights_hash"), 16 hexadecimal digits, from the sum of all parts.
std::string mark_of_sum(std::uint64_t sum);

/// Reads the weights in `base` when `adapter` is a run of fsdp-finetune or a checkpoint of it, and compares their mark.
/// Does nothing for an adapter in peft's format, which does not say what it was trained for. Each rank reads a part.
/// Collective. \throws FormatError on every rank unless they are the weights that the adapters were trained for
void require_base_weights(ProcessGroup& world, const std::filesystem::path& adapter, const std::filesystem::path& base);

}  // namespace fsdp
