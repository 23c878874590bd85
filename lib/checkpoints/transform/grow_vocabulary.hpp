#pragma once
// Gives the embedding and the head of a model more rows, for tokens that were added to its tokenizer.
#include <array>
#include <cstdint>
#include <memory>

#include "lib/base/types/named_values.hpp"
#include "lib/checkpoints/source/source.hpp"

namespace fsdp {

/// How the rows of new tokens start.
enum class NewRows {
  mean,  ///< as the mean of all rows
  zero
};

inline constexpr std::array<NamedValue<NewRows>, 2> kNewRows{{{"mean", NewRows::mean}, {"zero", NewRows::zero}}};

/// Returns `source` with `rows` rows in its embedding and its head, where it has one; nothing is changed in tensors
/// that have as many or more. The mean is computed in float64 when the first new row is read.
std::unique_ptr<Source> grow_vocabulary(std::shared_ptr<const Source> source, std::int64_t rows, NewRows start);

}  // namespace fsdp
