#include "lib/token_files/row_packing.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <stdexcept>
#include <string>

#include "lib/base/types/hash_functions.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

/// Returns element `i` of a permutation of [0, n) that depends on `key` alone, without computing the other elements: a
/// Feistel network over the next power of four, repeated until the value is below n (Black, Rogaway, CT-RSA 2002).
std::int64_t permuted(std::int64_t i, std::int64_t n, std::uint64_t key) {
  constexpr int kRounds = 8;  // many rounds, because each has few bits where few documents have one size
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n - 1)));
  const int half = std::max(1, (bits + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto value = static_cast<std::uint64_t>(i);
  do {
    std::uint64_t left = value >> half, right = value & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const auto mixed = left ^ (splitmix64(key ^ splitmix64(right * kRounds + round)) & mask);
      left = right;
      right = mixed;
    }
    value = left << half | right;
  } while (value >= static_cast<std::uint64_t>(n));
  return static_cast<std::int64_t>(value);
}

/// Rows that are not full, indexed by the room that is left in them.
class OpenRows {
 public:
  explicit OpenRows(std::int64_t capacity)
      : rows_(static_cast<std::size_t>(capacity) + 1), words_(static_cast<std::size_t>(capacity) / kBits + 1) {}

  void add(std::int64_t row, std::int64_t room) {
    if (room == 0) return;
    element(rows_, room).push_back(row);
    words_[to_index(room) / kBits] |= std::uint64_t{1} << (to_index(room) % kBits);
  }

  /// The smallest room of any row that is at least `size`; 0 when there is no such row.
  std::int64_t least_room(std::int64_t size) const {
    auto word = to_index(size) / kBits;
    auto bits = words_[word] & (~std::uint64_t{0} << (to_index(size) % kBits));
    while (bits == 0) {
      if (++word == words_.size()) return 0;
      bits = words_[word];
    }
    return static_cast<std::int64_t>(word * kBits) + std::countr_zero(bits);
  }

  /// Removes and returns a row with this room.
  std::int64_t take(std::int64_t room) {
    auto& rows = element(rows_, room);
    const auto row = rows.back();
    rows.pop_back();
    if (rows.empty()) words_[to_index(room) / kBits] &= ~(std::uint64_t{1} << (to_index(room) % kBits));
    return row;
  }

 private:
  static constexpr std::size_t kBits = 64;
  std::vector<std::vector<std::int64_t>> rows_;  ///< by room
  std::vector<std::uint64_t> words_;             ///< bit r: some row has room r
};

}  // namespace

RowPacking::RowPacking(std::span<const std::int64_t> sizes, std::int64_t capacity, const Order& order) : order_(order) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > capacity)
      throw std::invalid_argument("RowPacking: document " + std::to_string(i) + " has " + std::to_string(sizes[i]) +
                                  " tokens, a row " + std::to_string(capacity));
  }
  sort_by_size(sizes, capacity);
  order_rows(fill_rows(sizes, capacity));
}

void RowPacking::sort_by_size(std::span<const std::int64_t> sizes, std::int64_t capacity) {
  std::vector<std::int64_t> count(static_cast<std::size_t>(capacity) + 1);
  for (const auto size : sizes) ++element(count, size);
  std::vector<std::int64_t> next(count.size());
  std::int64_t places = 0;
  for (std::size_t size = count.size(); size-- > 1;) {
    next[size] = places;
    if (count[size] > 0) classes_.push_back({.first = places, .count = count[size]});
    places += count[size];
  }
  by_size_.resize(static_cast<std::size_t>(places));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    element(by_size_, element(next, sizes[i])++) = static_cast<std::int64_t>(i);
  }
}

std::vector<std::int64_t> RowPacking::fill_rows(std::span<const std::int64_t> sizes, std::int64_t capacity) const {
  OpenRows open(capacity);
  std::vector<std::int64_t> row_of_place;
  row_of_place.reserve(by_size_.size());
  std::int64_t rows = 0;
  for (const auto document : by_size_) {
    const auto size = element(sizes, document);
    const auto room = open.least_room(size);
    const auto row = room > 0 ? open.take(room) : rows++;
    open.add(row, (room > 0 ? room : capacity) - size);
    row_of_place.push_back(row);
  }
  return row_of_place;
}

void RowPacking::order_rows(const std::vector<std::int64_t>& row_of_place) {
  const auto rows = row_of_place.empty() ? 0 : *std::max_element(row_of_place.begin(), row_of_place.end()) + 1;
  std::vector<std::int64_t> first(static_cast<std::size_t>(rows), -1);  // documents
  for (std::size_t place = 0; place < row_of_place.size(); ++place) {
    auto& least = element(first, row_of_place[place]);
    if (least < 0 || by_size_[place] < least) least = by_size_[place];
  }
  std::vector<std::int64_t> begun(first.size());
  std::iota(begun.begin(), begun.end(), std::int64_t{0});
  std::sort(begun.begin(), begun.end(),
            [&](std::int64_t a, std::int64_t b) { return element(first, a) < element(first, b); });
  std::vector<std::int64_t> number(first.size());
  for (std::size_t i = 0; i < begun.size(); ++i) element(number, begun[i]) = static_cast<std::int64_t>(i);
  row_begin_.assign(first.size() + 1, 0);
  for (const auto row : row_of_place) ++row_begin_[to_index(element(number, row)) + 1];
  std::partial_sum(row_begin_.begin(), row_begin_.end(), row_begin_.begin());
  auto next = row_begin_;
  places_.resize(row_of_place.size());
  for (std::size_t place = 0; place < row_of_place.size(); ++place) {
    const auto row = to_index(element(number, row_of_place[place]));
    element(places_, next[row]++) = static_cast<std::int64_t>(place);
  }
}

std::int64_t RowPacking::document_at(std::int64_t place, std::int64_t epoch) const {
  if (!order_.shuffle) return element(by_size_, place);
  const auto found = std::upper_bound(classes_.begin(), classes_.end(), place,
                                      [](std::int64_t p, const SizeClass& c) { return p < c.first; });
  const auto& [first, count] = *std::prev(found);
  const auto key = splitmix64_output(splitmix64_output(order_.seed) + static_cast<std::uint64_t>(epoch)) ^
                   static_cast<std::uint64_t>(first);
  return element(by_size_, first + permuted(place - first, count, key));
}

std::vector<std::int64_t> RowPacking::documents(std::int64_t row, std::int64_t epoch) const {
  const auto begin = row_begin_.at(to_index(row)), end = row_begin_.at(to_index(row) + 1);
  std::vector<std::int64_t> documents;
  for (auto i = begin; i < end; ++i) documents.push_back(document_at(element(places_, i), epoch));
  std::sort(documents.begin(), documents.end());
  return documents;
}

}  // namespace fsdp
