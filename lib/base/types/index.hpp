#pragma once
// Containers have unsigned indices; ranks, rows and parameters are counted with signed numbers. No index is checked.
#include <cstddef>
#include <type_traits>

namespace fsdp {

/// The index of a container that a number or an enumerator >= 0 is.
template <class Index>
requires(std::is_integral_v<Index> || std::is_enum_v<Index>) constexpr std::size_t to_index(Index index) {
  return static_cast<std::size_t>(index);
}

/// The element of `values` at a signed index or an enumerator.
template <class Values, class Index>
constexpr decltype(auto) element(Values&& values, Index index) {
  return values[to_index(index)];
}

/// `values.begin()` advanced by an unsigned number.
template <class Values, class Index>
requires(std::is_integral_v<Index>) constexpr auto iterator_at(Values&& values, Index index) {
  return values.begin() + static_cast<std::ptrdiff_t>(index);
}

}  // namespace fsdp
