#include "lib/tokenizer/bpe_merges.hpp"

#include <algorithm>
#include <queue>
#include <tuple>

namespace fsdp {
namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
}

constexpr std::int32_t kNone = -1;  // no neighbour; as an id: merged into the symbol on the left

}  // namespace

/// The symbols of a word are a doubly linked list in an array.
struct BpeMerges::Symbol {
  std::int32_t id;
  std::int32_t previous;
  std::int32_t next;
};

/// A merge that was possible when it was queued; outdated when one of the two symbols is not what it was.
struct BpeMerges::Candidate {
  Merge merge;
  std::int32_t position;  ///< of the left symbol
  std::int32_t left_id;
  std::int32_t right_id;

  /// Queue order: std::priority_queue gives the greatest first.
  bool operator<(const Candidate& other) const {
    return std::tie(merge.rank, position) > std::tie(other.merge.rank, other.position);
  }
};

void BpeMerges::add(std::int32_t left, std::int32_t right, std::int32_t merged) {
  merges_.emplace(pair_key(left, right), Merge{static_cast<std::int32_t>(merges_.size()), merged});
}

std::optional<BpeMerges::Candidate> BpeMerges::candidate(const std::vector<Symbol>& symbols, std::int32_t left) const {
  if (left == kNone) return {};
  const Symbol& symbol = symbols[static_cast<std::size_t>(left)];
  if (symbol.next == kNone) return {};
  const std::int32_t right_id = symbols[static_cast<std::size_t>(symbol.next)].id;
  const auto found = merges_.find(pair_key(symbol.id, right_id));
  if (found == merges_.end()) return {};
  return Candidate{found->second, left, symbol.id, right_id};
}

void BpeMerges::apply(std::span<const std::int32_t> word, std::vector<std::int32_t>& out) const {
  const auto length = static_cast<std::int32_t>(word.size());
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (std::int32_t i = 0; i < length; ++i) {
    symbols.push_back({word[static_cast<std::size_t>(i)], i - 1, i + 1 < length ? i + 1 : kNone});
  }
  std::vector<Candidate> first;
  for (std::int32_t i = 0; i < length; ++i) {
    if (const auto next = candidate(symbols, i)) first.push_back(*next);
  }
  std::priority_queue<Candidate> queue({}, std::move(first));

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<std::size_t>(best.position)];
    if (left.id != best.left_id || left.next == kNone) continue;
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    if (right.id != best.right_id) continue;
    left.id = best.merge.merged;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) symbols[static_cast<std::size_t>(left.next)].previous = best.position;
    for (const std::int32_t position : {left.previous, best.position}) {
      if (const auto next = candidate(symbols, position)) queue.push(*next);
    }
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id != kNone) out.push_back(symbol.id);
  }
}

}  // namespace fsdp
