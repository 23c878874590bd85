#include "lib/token_files/row_packing.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "lib/base/types/hash_functions.hpp"

using fsdp::RowPacking;

namespace {

using Numbers = std::vector<std::int64_t>;

/// Lengths distributed as those of chess games: many are short, a few are long.
Numbers random_sizes(std::size_t count, std::int64_t capacity, std::uint64_t seed) {
  Numbers sizes;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto random = fsdp::splitmix64(seed * 1000 + i);
    const auto most = random % 5 == 0 ? capacity : capacity / 4;
    sizes.push_back(static_cast<std::int64_t>((random >> 8) % static_cast<std::uint64_t>(most + 1)));
  }
  return sizes;
}

std::vector<Numbers> rows_of(const RowPacking& packing, std::int64_t epoch) {
  std::vector<Numbers> rows;
  for (std::int64_t row = 0; row < packing.num_rows(); ++row) rows.push_back(packing.documents(row, epoch));
  return rows;
}

std::int64_t total(const Numbers& documents, const Numbers& sizes) {
  return std::accumulate(documents.begin(), documents.end(), std::int64_t{0},
                         [&](auto sum, auto document) { return sum + sizes[static_cast<std::size_t>(document)]; });
}

}  // namespace

TEST_SUITE("dataset/row_packing") {
  TEST_CASE("every document that has tokens is in one row, and no row is too full, in every epoch") {
    for (const std::size_t count : {0, 1, 2, 63, 64, 65, 3000}) {
      const std::int64_t capacity = 130;
      const auto sizes = random_sizes(count, capacity, 7);
      for (const bool shuffle : {true, false}) {
        const RowPacking packing(sizes, capacity, {42, shuffle});
        for (const std::int64_t epoch : {0, 1, 17}) {
          CAPTURE(count);
          CAPTURE(epoch);
          std::multiset<std::int64_t> seen;
          for (const auto& row : rows_of(packing, epoch)) {
            CHECK(!row.empty());
            CHECK(std::is_sorted(row.begin(), row.end()));
            CHECK(total(row, sizes) <= capacity);
            seen.insert(row.begin(), row.end());
          }
          std::multiset<std::int64_t> expected;
          for (std::size_t i = 0; i < count; ++i) {
            if (sizes[i] > 0) expected.insert(static_cast<std::int64_t>(i));
          }
          CHECK(seen == expected);
          CHECK(packing.num_documents() == static_cast<std::int64_t>(expected.size()));
        }
      }
    }
  }

  TEST_CASE("best fit, the largest first") {
    // 7 and 3, 6 and 4, 5 and 5: first fit in their order would need four rows, as 3 and 4 would share one.
    const RowPacking packing(Numbers{3, 4, 5, 5, 6, 7}, 10, {1, false});
    CHECK(rows_of(packing, 0) == std::vector<Numbers>{{0, 5}, {1, 4}, {2, 3}});
    // 2 goes where it fits best: beside 8, not beside 5, where there is more room.
    CHECK(rows_of(RowPacking(Numbers{5, 8, 2}, 10, {1, false}), 0) == std::vector<Numbers>{{0}, {1, 2}});
  }

  TEST_CASE("rows are nearly full where lengths vary: 3000 games") {
    const std::int64_t capacity = 512;
    const auto sizes = random_sizes(3000, capacity, 3);
    const RowPacking packing(sizes, capacity, {42, true});
    const auto tokens = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    CHECK(static_cast<double>(tokens) > 0.99 * static_cast<double>(packing.num_rows() * capacity));
  }

  TEST_CASE("another epoch or seed puts documents of one size elsewhere; the rows' sizes stay") {
    const std::int64_t capacity = 100;
    const auto sizes = random_sizes(800, capacity, 5);
    const RowPacking packing(sizes, capacity, {42, true}), other(sizes, capacity, {43, true});
    const auto first = rows_of(packing, 0), second = rows_of(packing, 1);
    CHECK(first == rows_of(RowPacking(sizes, capacity, {42, true}), 0));
    CHECK(first != second);
    CHECK(first != rows_of(other, 0));
    REQUIRE(first.size() == second.size());
    for (std::size_t row = 0; row < first.size(); ++row) {
      Numbers a, b;
      for (const auto document : first[row]) a.push_back(sizes[static_cast<std::size_t>(document)]);
      for (const auto document : second[row]) b.push_back(sizes[static_cast<std::size_t>(document)]);
      std::sort(a.begin(), a.end());
      std::sort(b.begin(), b.end());
      CHECK(a == b);
    }
    const RowPacking in_order(sizes, capacity, {42, false});
    CHECK(rows_of(in_order, 0) == rows_of(in_order, 5));
  }

  TEST_CASE("documents of one size take each place about equally often") {
    const Numbers sizes(12, 5);
    std::map<std::int64_t, int> first_row;
    constexpr int kEpochs = 6000;
    const RowPacking packing(sizes, 20, {9, true});
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      for (const auto document : packing.documents(0, epoch)) ++first_row[document];
    }
    double chi_squared = 0;
    for (std::int64_t document = 0; document < 12; ++document) {
      const double expected = kEpochs * 4.0 / 12, off = first_row[document] - expected;
      chi_squared += off * off / expected;
    }
    CHECK(chi_squared < 31.3);  // 11 degrees of freedom, p = 0.001
  }

  TEST_CASE("frozen values, or old runs could not be continued") {
    const RowPacking packing(Numbers{5, 3, 5, 2, 5, 4, 5, 1, 5, 0}, 10, {42, true});
    CHECK(rows_of(packing, 0) == std::vector<Numbers>{{4, 6}, {1, 3}, {0, 2}, {5, 7, 8}});
    CHECK(rows_of(packing, 1) == std::vector<Numbers>{{0, 8}, {1, 3}, {2, 6}, {4, 5, 7}});
  }

  TEST_CASE("sizes that no row can have") {
    CHECK_THROWS_AS(RowPacking(Numbers{4, 11}, 10, {}), std::invalid_argument);
    CHECK_THROWS_AS(RowPacking(Numbers{4, -1}, 10, {}), std::invalid_argument);
  }
}
