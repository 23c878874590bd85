#pragma once
// How far two names are apart, for "did you mean".
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <vector>

namespace fsdp {

/// Number of letters to insert, delete or replace to turn one text into the other (Levenshtein distance).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const auto replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace fsdp
