#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"
#include "lib/engine/sharding/shard_layout.hpp"

using namespace fsdp;

TEST_SUITE("fsdp/shard_layout") {
  TEST_CASE("shard_range: 10 rows over 4 ranks leave the last rank one row") {
    const std::int64_t expected_rows[] = {3, 3, 3, 1};  // torch.chunk(10, 4)
    for (int rank = 0; rank < 4; ++rank) {
      CAPTURE(rank);
      const auto range = shard_range(10, 4, rank);
      CHECK(range.first_row == 3 * rank);
      CHECK(range.num_rows == expected_rows[rank]);
      CHECK(range.padded_rows == 3);  // collectives need equal counts
    }
  }

  TEST_CASE("shard_range: more ranks than rows gives empty, still padded shards") {
    CHECK(shard_range(2, 4, 3).num_rows == 0);
    CHECK(shard_range(2, 4, 3).padded_rows == 1);
    CHECK(shard_range(5, 4, 3).num_rows == 0);  // 2 + 2 + 1 + 0
    CHECK(shard_range(5, 4, 3).first_row == 5);
  }

  TEST_CASE("shard_range: the shards tile the rows, for every size and number of ranks") {
    for (std::int64_t rows = 1; rows <= 40; ++rows) {
      for (int ranks = 1; ranks <= 9; ++ranks) {
        CAPTURE(rows);
        CAPTURE(ranks);
        std::int64_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const auto range = shard_range(rows, ranks, rank);
          REQUIRE(range.first_row == next);
          REQUIRE(range.num_rows >= 0);
          REQUIRE(range.num_rows <= range.padded_rows);
          REQUIRE(range.padded_rows == (rows + ranks - 1) / ranks);
          // In the gathered buffer every rank's rows lie where they belong.
          REQUIRE((range.num_rows == 0 || range.first_row == rank * range.padded_rows));
          next += range.num_rows;
        }
        REQUIRE(next == rows);
      }
    }
  }

  TEST_CASE("shard_range: rejects impossible arguments and names them") {
    CHECK_THROWS_WITH_AS(shard_range(8, 4, 4), "rank 4 not in [0, 4)", RequestError);
    CHECK_THROWS_WITH_AS(shard_range(8, 4, -1), "rank -1 not in [0, 4)", RequestError);
    CHECK_THROWS_AS(shard_range(0, 4, 0), RequestError);
    CHECK_THROWS_AS(shard_range(8, 0, 0), RequestError);
  }

  TEST_CASE("ParamLayout: buffers hold the padded shards and the aligned rows") {
    const ParamLayout vocabulary{"wte", {97, 16}, 64, true};
    CHECK(vocabulary.row_elements() == 16);
    CHECK(vocabulary.elements() == 97 * 16);
    CHECK(vocabulary.compute_rows() == 128);
    CHECK(vocabulary.buffer_rows(4) == 128);   // 4 x 25 rows fit
    CHECK(vocabulary.buffer_rows(96) == 192);  // 96 x 2 do not
    CHECK(vocabulary.shape_with_rows(25) == std::vector<std::int64_t>{25, 16});
    const ParamLayout bias{"bias", {5}, 1, false};
    CHECK(bias.row_elements() == 1);
    CHECK(bias.compute_rows() == 5);
    CHECK(bias.buffer_rows(4) == 8);
    const ParamLayout scalar{"scalar", {}, 1, false};
    CHECK(scalar.rows() == 1);
    CHECK(scalar.elements() == 1);
    CHECK(scalar.shape_with_rows(1) == std::vector<std::int64_t>{1});
  }
}
