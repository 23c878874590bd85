#pragma once
// How far two names are apart, for "did you mean".
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
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

/// Keeps the nearest of the names that it is offered, of which a third of the letters may be wrong.
class NearestName {
 public:
  explicit NearestName(std::string_view wanted) : wanted_(wanted), least_(wanted.size() / 3 + 1) {}

  /// \param name   is compared. \param shown  is kept for it
  void offer(std::string_view name, std::string_view shown) { offer_at(edit_distance(wanted_, name), shown); }
  void offer_at(std::size_t distance, std::string_view shown) {
    if (distance >= least_) return;
    least_ = distance;
    nearest_ = shown;
  }
  /// One wrong letter is allowed in any name.
  void allow_one() { least_ = std::max<std::size_t>(least_, 2); }
  /// "": none is near.
  const std::string& name() const { return nearest_; }

 private:
  std::string wanted_, nearest_;
  std::size_t least_;
};

}  // namespace fsdp
