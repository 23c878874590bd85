#pragma once
// Which documents share a row: best fit, the largest first, over the whole data set (as Ding et al., "Fewer Truncations
// Improve Language Modeling", arXiv:2404.10830, section 3), except that nothing is cut here.
//
// How rows are filled depends on the documents' sizes alone, so every epoch has as many rows. Which of the documents of
// one size takes which place depends on seed and epoch. Frozen: a saved run continues in the rows it began with.
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

/// 16 bytes for each document are kept.
class RowPacking {
 public:
  struct Order {
    std::uint64_t seed = 0;
    bool shuffle = true;  ///< false: documents of one size in their order, in every epoch
  };

  /// \param sizes     tokens of each document; 0: it is in no row
  /// \param capacity  tokens of a row
  /// \throws std::invalid_argument when a size is negative or more than a row holds
  RowPacking(std::span<const std::int64_t> sizes, std::int64_t capacity, const Order& order);

  std::int64_t num_rows() const { return static_cast<std::int64_t>(row_begin_.size()) - 1; }
  std::int64_t num_documents() const { return static_cast<std::int64_t>(by_size_.size()); }
  /// Documents of a row, in their order in the data set.
  /// \param row  in [0, num_rows()); rows follow each other as their first documents of the unshuffled order do
  std::vector<std::int64_t> documents(std::int64_t row, std::int64_t epoch) const;

 private:
  struct SizeClass {
    std::int64_t first, count;  ///< places in by_size_
  };
  std::int64_t document_at(std::int64_t place, std::int64_t epoch) const;
  void sort_by_size(std::span<const std::int64_t> sizes, std::int64_t capacity);
  /// \return the row of each place, rows numbered as they were begun
  std::vector<std::int64_t> fill_rows(std::span<const std::int64_t> sizes, std::int64_t capacity) const;
  void order_rows(const std::vector<std::int64_t>& row_of_place);

  Order order_;
  std::vector<std::int64_t> by_size_;    ///< documents, the largest first, then in their order
  std::vector<SizeClass> classes_;       ///< of one size each, in the order of by_size_
  std::vector<std::int64_t> places_;     ///< in by_size_: those of row 0, those of row 1, ...
  std::vector<std::int64_t> row_begin_;  ///< in places_, and its end
};

}  // namespace fsdp
