#pragma once
// What --check and --verify ask of raw elements: are they finite, how far are they apart.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "lib/base/dtype.hpp"

namespace fsdp {

struct NonFinite {
  std::uint64_t nan = 0;
  std::uint64_t inf = 0;
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max();  ///< index of the first of them; max: none
};

/// Counts in `elements` (whole ones, little-endian); a complex element counts by its worse part. Integers have none.
NonFinite count_non_finite(DType dtype, std::span<const std::byte> elements);

struct ElementValue {
  double real = 0, imaginary = 0;
};
/// Element number `index` as a number: exact but for 64-bit integers beyond 2^53.
ElementValue element_value(DType dtype, std::span<const std::byte> elements, std::uint64_t index);

/// As short as it can be and still be the same number: "0.1", "1e-08", "inf", "nan".
std::string number_text(double value);

}  // namespace fsdp
