#pragma once
// Assigns documents to rows: best fit, the largest document first, over the whole data set (as Ding et al., "Fewer
// Truncations Improve Language Modeling", arXiv:2404.10830, section 3), except that no document is cut here.
//
// How rows are filled depends only on the sizes of the documents, so every epoch has the same number of rows. Seed and
// epoch decide which of the documents of one size takes which place. Frozen: a saved run continues in the rows it began
// with.
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

/// Takes 16 bytes for each document.
class RowPacking {
 public:
  struct Order {
    std::uint64_t seed = 0;
    bool shuffle = true;  ///< false: documents of one size keep their order in every epoch
  };

  /// \param sizes     tokens of each document; a document of 0 tokens is in no row
  /// \param capacity  tokens of a row
  /// \throws std::invalid_argument when a size is negative or larger than a row
  RowPacking(std::span<const std::int64_t> sizes, std::int64_t capacity, const Order& order);

  std::int64_t num_rows() const { return std::ssize(row_begin_) - 1; }
  std::int64_t num_documents() const { return std::ssize(by_size_); }
  /// Documents of a row, in the order of the data set.
  /// \param row  in [0, num_rows()); rows are sorted by their first documents in the unshuffled order
  std::vector<std::int64_t> documents(std::int64_t row, std::int64_t epoch) const;

 private:
  struct SizeClass {
    std::int64_t first, count;  ///< places in by_size_
  };
  std::int64_t document_at(std::int64_t place, std::int64_t epoch) const;
  void sort_by_size(std::span<const std::int64_t> sizes, std::int64_t capacity);
  /// \return the row of each place; rows are numbered in the order in which they are opened
  std::vector<std::int64_t> fill_rows(std::span<const std::int64_t> sizes, std::int64_t capacity) const;
  void order_rows(const std::vector<std::int64_t>& row_of_place);

  Order order_;
  std::vector<std::int64_t> by_size_;    ///< documents sorted by size, the largest first, then by number
  std::vector<SizeClass> classes_;       ///< ranges of documents of one size, in the order of by_size_
  std::vector<std::int64_t> places_;     ///< places of row 0 in by_size_, then those of row 1, ...
  std::vector<std::int64_t> row_begin_;  ///< first place of each row in places_, then the end of places_
};

}  // namespace fsdp
