#include "lib/tokenizers/bpe/bpe_merges.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <tuple>

#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
}

constexpr std::int32_t kNone = -1;  // no neighbour; as an id: merged into the left symbol
constexpr std::size_t kShort = 48;  // up to this length a scan of all pairs beats a queue
constexpr std::int32_t kNoMerge = std::numeric_limits<std::int32_t>::max();

}  // namespace

/// A symbol of a word; the symbols are a doubly linked list in an array.
struct BpeMerges::Symbol {
  std::int32_t id;
  std::int32_t previous;
  std::int32_t next;
};

/// A queued merge. It is outdated when one of its two symbols has changed since.
struct BpeMerges::Candidate {
  std::int32_t rank;
  std::int32_t position;  ///< position of the left symbol
  std::int32_t merged;
  std::int32_t left_id;
  std::int32_t right_id;

  /// Reversed, because the standard heap yields the greatest element first.
  bool operator<(const Candidate& other) const {
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

void BpeMerges::reserve(std::size_t num_merges) { grow(std::bit_ceil(2 * num_merges + 2)); }

void BpeMerges::add(std::int32_t left, std::int32_t right, std::int32_t merged, Priority priority) {
  if (2 * (size_ + 1) > slots_.size()) grow(std::max<std::size_t>(16, 2 * slots_.size()));
  const std::uint64_t pair = pair_key(left, right);
  Merge& slot = slots_[slot_of(pair)];
  if (slot.rank == kFree) ++size_;
  if (priority == Priority::lower || next_rank_ == 0) ++next_rank_;
  slot = {.pair = pair, .rank = next_rank_ - 1, .merged = merged};
}

std::size_t BpeMerges::slot_of(std::uint64_t pair) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = ((pair * 0x9E3779B97F4A7C15ull) >> 20) & mask;
  while (slots_[at].rank != kFree && slots_[at].pair != pair) at = (at + 1) & mask;
  return at;
}

void BpeMerges::grow(std::size_t num_slots) {
  if (num_slots <= slots_.size()) return;
  auto old = std::move(slots_);
  slots_.assign(num_slots, Merge{.pair = 0, .rank = kFree, .merged = 0});
  for (const Merge& merge : old) {
    if (merge.rank != kFree) slots_[slot_of(merge.pair)] = merge;
  }
}

const BpeMerges::Merge* BpeMerges::find(std::int32_t left, std::int32_t right) const {
  const Merge& slot = slots_[slot_of(pair_key(left, right))];
  return slot.rank == kFree ? nullptr : &slot;
}

void BpeMerges::apply(std::span<const std::int32_t> word, std::vector<std::int32_t>& out) const {
  if (word.size() < 2 || size_ == 0) {
    out.insert(out.end(), word.begin(), word.end());
  } else if (word.size() <= kShort) {
    apply_short(word, out);
  } else {
    apply_long(word, out);
  }
}

void BpeMerges::apply_short(std::span<const std::int32_t> word, std::vector<std::int32_t>& out) const {
  std::array<std::int32_t, kShort> ids;
  std::array<std::int32_t, kShort> ranks;   // rank of the pair that begins at this symbol
  std::array<std::int32_t, kShort> merged;  // result of merging this pair
  std::size_t length = word.size();
  std::copy(word.begin(), word.end(), ids.begin());
  const auto look_up = [&](std::size_t at) {
    const Merge* merge = find(ids[at], ids[at + 1]);
    ranks[at] = merge == nullptr ? kNoMerge : merge->rank;
    merged[at] = merge == nullptr ? 0 : merge->merged;
  };
  for (std::size_t at = 0; at + 1 < length; ++at) look_up(at);
  while (length > 1) {
    const auto pairs = static_cast<std::ptrdiff_t>(length - 1);
    const auto best = std::min_element(ranks.begin(), ranks.begin() + pairs);
    if (*best == kNoMerge) break;
    const auto at = to_index(best - ranks.begin());
    ids[at] = merged[at];
    for (std::size_t next = at + 1; next + 1 < length; ++next) {
      ids[next] = ids[next + 1];
      ranks[next - 1] = ranks[next];
      merged[next - 1] = merged[next];
    }
    --length;
    if (at + 1 < length) look_up(at);
    if (at > 0) look_up(at - 1);
  }
  out.insert(out.end(), ids.begin(), iterator_at(ids, length));
}

void BpeMerges::queue_candidate(const std::vector<Symbol>& symbols, std::int32_t left,
                                std::vector<Candidate>& queue) const {
  if (left == kNone) return;
  const Symbol& symbol = element(symbols, left);
  if (symbol.next == kNone) return;
  const std::int32_t right_id = element(symbols, symbol.next).id;
  const Merge* merge = find(symbol.id, right_id);
  if (merge != nullptr)
    queue.push_back(
        {.rank = merge->rank, .position = left, .merged = merge->merged, .left_id = symbol.id, .right_id = right_id});
}

void BpeMerges::apply_long(std::span<const std::int32_t> word, std::vector<std::int32_t>& out) const {
  const auto length = static_cast<std::int32_t>(word.size());
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (std::int32_t i = 0; i < length; ++i) {
    symbols.push_back({element(word, i), i - 1, i + 1 < length ? i + 1 : kNone});
  }
  std::vector<Candidate> queue;
  for (std::int32_t i = 0; i < length; ++i) queue_candidate(symbols, i, queue);
  std::make_heap(queue.begin(), queue.end());

  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end());
    const Candidate best = queue.back();
    queue.pop_back();
    Symbol& left = element(symbols, best.position);
    if (left.id != best.left_id || left.next == kNone) continue;
    Symbol& right = element(symbols, left.next);
    if (right.id != best.right_id) continue;
    left.id = best.merged;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) element(symbols, left.next).previous = best.position;
    for (const std::int32_t position : {left.previous, best.position}) {
      const std::size_t before = queue.size();
      queue_candidate(symbols, position, queue);
      if (queue.size() > before) std::push_heap(queue.begin(), queue.end());
    }
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id != kNone) out.push_back(symbol.id);
  }
}

}  // namespace fsdp
