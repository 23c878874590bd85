#pragma once
// Byte-pair merging: the table of merges and its application to one word.
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace fsdp {

/// Which pairs of ids merge, into what, and in which order.
class BpeMerges {
 public:
  void reserve(std::size_t num_merges) { merges_.reserve(num_merges); }

  /// Appends the next merge, of a lower priority than all before it. A pair that is already there keeps its place.
  void add(std::int32_t left, std::int32_t right, std::int32_t merged);

  /// Merges inside `word`: while a pair that is in the table is left, the one added first, of equals the leftmost.
  /// Takes O(n log n) for a word of n ids. Appends the result to `out`.
  void apply(std::span<const std::int32_t> word, std::vector<std::int32_t>& out) const;

 private:
  struct Merge {
    std::int32_t rank;
    std::int32_t merged;
  };
  struct Candidate;
  struct Symbol;
  std::optional<Candidate> candidate(const std::vector<Symbol>& symbols, std::int32_t left) const;

  std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace fsdp
