#include "lib/documents/split.hpp"

#include "lib/base/types/hash_functions.hpp"

namespace fsdp {

bool Split::reads(std::string_view document) const {
  if (!is_on()) return true;
  constexpr double kStep = 0x1p-53;
  const auto place = static_cast<double>(splitmix64(fnv1a(document)) >> 11) * kStep;  // in [0, 1)
  return (place < share) == held_out;
}

}  // namespace fsdp
