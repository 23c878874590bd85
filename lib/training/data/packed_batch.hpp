#pragma once
// Documents that share the rows of a micro-batch, as a model takes them.
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/compute/tensor/layer.hpp"

namespace fsdp {

/// Tokens of each document of a row, in their order; they lie one after the other from the row's beginning.
using DocumentLengths = std::vector<std::int64_t>;

/// Where documents and padding lie, without positions. On the host.
/// \param rows  none empty; a row's sum is at most `length`
/// \throws UsageError when there are 2^31 tokens or more
std::shared_ptr<Packing> lay_out_documents(const std::vector<DocumentLengths>& rows, std::int64_t length);
/// With positions.
std::shared_ptr<Packing> make_packing(const std::vector<DocumentLengths>& rows, std::int64_t length);

}  // namespace fsdp
