#pragma once
// The marks a tokenizer puts around a whole text.
#include <cstdint>
#include <vector>

namespace fsdp {

struct DocumentMarks {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;

  /// The marks with `ids` between them.
  std::vector<std::int32_t> around(std::vector<std::int32_t> ids) const {
    ids.insert(ids.begin(), before.begin(), before.end());
    ids.insert(ids.end(), after.begin(), after.end());
    return ids;
  }
};

}  // namespace fsdp
