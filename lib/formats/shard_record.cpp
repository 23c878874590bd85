#include "lib/formats/shard_record.hpp"

#include <limits>

#include "lib/base/types/error.hpp"

namespace fsdp {

std::int64_t num_elements(const Shape& shape) {
  std::int64_t count = 1;
  bool empty = false;
  for (const auto size : shape) {
    if (size < 0) throw FormatError("a tensor has the negative size " + std::to_string(size));
    empty = empty || size == 0;
  }
  if (empty) return 0;
  for (const auto size : shape) {
    if (count > std::numeric_limits<std::int64_t>::max() / size) {
      throw FormatError("a tensor has more elements than 64 bits can count");
    }
    count *= size;
  }
  return count;
}

}  // namespace fsdp
