#pragma once
// Byte-pair encoding: the table of merges, and merging inside one word.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

/// Table of pairs of ids, their results and their priorities. Open addressing: a word costs one look-up per pair.
class BpeMerges {
 public:
  void reserve(std::size_t num_merges);

  enum class Priority : std::uint8_t {
    lower,  ///< than all merges before it
    same    ///< as the merge before it
  };
  /// Appends a merge. Ids are not negative. A pair that is already in the table moves to this place.
  void add(std::int32_t left, std::int32_t right, std::int32_t merged, Priority priority = Priority::lower);

  /// Merges pairs inside `word` until none is left that is in the table: the pair with the highest priority first, of
  /// those of one priority the leftmost. Takes O(n log n) for a word of n ids. Appends the result to `out`.
  void apply(std::span<const std::int32_t> word, std::vector<std::int32_t>& out) const;

 private:
  struct Merge {
    std::uint64_t pair;
    std::int32_t rank;  ///< kFree in an unused slot
    std::int32_t merged;
  };
  struct Candidate;
  struct Symbol;
  static constexpr std::int32_t kFree = -1;

  std::size_t slot_of(std::uint64_t pair) const;
  void grow(std::size_t num_slots);
  const Merge* find(std::int32_t left, std::int32_t right) const;
  void queue_candidate(const std::vector<Symbol>& symbols, std::int32_t left, std::vector<Candidate>& queue) const;
  void apply_short(std::span<const std::int32_t> word, std::vector<std::int32_t>& out) const;
  void apply_long(std::span<const std::int32_t> word, std::vector<std::int32_t>& out) const;

  std::vector<Merge> slots_;  ///< a power of two of them, at most half used
  std::size_t size_ = 0;
  std::int32_t next_rank_ = 0;
};

}  // namespace fsdp
