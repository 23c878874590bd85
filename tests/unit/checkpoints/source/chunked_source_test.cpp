#include "lib/checkpoints/source/chunked_source.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "lib/base/types/error.hpp"
#include "tests/support/cut_block.hpp"
#include "tests/unit/formats/formats_test_support.hpp"

using namespace fsdp;

namespace {

/// A tensor of ascending int32, held in memory as blocks.
class MemorySource : public ChunkedSource {
 public:
  MemorySource(Shape shape, std::vector<Block> blocks, bool whole = false) : whole_(whole) {
    const auto total = static_cast<std::size_t>(num_elements(shape));
    std::vector<std::int32_t> all(total);
    std::iota(all.begin(), all.end(), 0);
    for (const auto& block : blocks) {
      auto& data = data_.emplace_back(static_cast<std::size_t>(num_elements(block.sizes)));
      const auto bytes = test::cut_block(std::as_bytes(std::span(all)), shape, block, 4);
      std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(data.data()));
    }
    add_tensor({"t", {"t"}, DType::i32, std::move(shape)}, std::move(blocks), "memory");
  }
  LoadedValue value(std::size_t) const override { return {}; }
  mutable int calls = 0;

 protected:
  std::optional<std::uint32_t> read_chunk(ChunkNumber chunk, std::uint64_t first, std::uint64_t count,
                                          std::span<std::byte> out, std::vector<ReadSum>*) const override {
    ++calls;
    const auto bytes = std::as_bytes(std::span(data_.at(chunk))).subspan(first * 4, count * 4);
    std::copy(bytes.begin(), bytes.end(), out.begin());
    return std::nullopt;
  }
  bool chunk_prefers_whole(ChunkNumber) const override { return whole_; }

 private:
  std::vector<std::vector<std::int32_t>> data_;
  bool whole_;
};

void check_all_ranges(const MemorySource& source) {
  const auto total = static_cast<std::uint64_t>(num_elements(source.tensors()[0].shape));
  for (std::uint64_t first = 0; first <= total; ++first) {
    for (std::uint64_t count = 0; first + count <= total; ++count) {
      std::vector<std::int32_t> got(count), wanted(count);
      std::iota(wanted.begin(), wanted.end(), static_cast<std::int32_t>(first));
      source.read(0, first, count, std::as_writable_bytes(std::span(got)), nullptr);
      CHECK(got == wanted);
    }
  }
}

}  // namespace

TEST_SUITE("source/chunked_source") {
  TEST_CASE("ChunkRuns: places ascend, and runs are found by element") {
    const Block tile{{1, 2, 0}, {2, 3, 4}};
    const Shape shape{4, 6, 4};
    const ChunkRuns runs(tile, shape);
    CHECK(runs.run_length() == 12);
    CHECK(runs.place(0) == 24 + 8);
    CHECK(runs.place(1) == 48 + 8);
    CHECK(runs.first_reaching(0) == 0);
    CHECK(runs.first_reaching(43) == 0);
    CHECK(runs.first_reaching(44) == 1);
    CHECK(runs.first_reaching(68) == 2);
    CHECK(runs.first_from(32) == 0);
    CHECK(runs.first_from(33) == 1);
    CHECK(runs.first_from(57) == 2);
  }

  TEST_CASE("ChunkedSource: reads every range of every tiling") {
    check_all_ranges({{}, {{{}, {}}}});
    check_all_ranges({{17}, {{{0}, {17}}}});
    check_all_ranges({{17}, {{{10}, {7}}, {{17}, {0}}, {{0}, {10}}}});
    check_all_ranges({{5, 6}, {{{3, 0}, {2, 6}}, {{0, 0}, {3, 6}}}});
    check_all_ranges({{5, 6}, {{{0, 0}, {5, 2}}, {{0, 2}, {5, 4}}}});
    check_all_ranges({{5, 6}, {{{0, 0}, {2, 2}}, {{2, 0}, {3, 2}}, {{0, 2}, {1, 4}}, {{1, 2}, {4, 4}}}});
    check_all_ranges({{3, 4, 5}, {{{0, 0, 0}, {3, 2, 5}}, {{0, 2, 0}, {3, 2, 3}}, {{0, 2, 3}, {3, 2, 2}}}});
    check_all_ranges({{5, 6}, {{{0, 0}, {5, 2}}, {{0, 2}, {5, 4}}}, true});
  }

  TEST_CASE("ChunkedSource: reads tiles of short rows in few pieces, and chunks that prefer it at once") {
    const std::int64_t rows = 3000;
    const MemorySource source({rows, 100}, {{{0, 0}, {rows, 50}}, {{0, 50}, {rows, 50}}});
    std::vector<std::int32_t> all(static_cast<std::size_t>(rows) * 100);
    source.read(0, 0, all.size(), std::as_writable_bytes(std::span(all)), nullptr);
    CHECK(std::is_sorted(all.begin(), all.end()));
    CHECK(source.calls == 4);
    const MemorySource whole({rows, 100}, {{{0, 0}, {rows, 50}}, {{0, 50}, {rows, 50}}}, true);
    whole.read(0, 0, all.size(), std::as_writable_bytes(std::span(all)), nullptr);
    CHECK(whole.calls == 2);
    CHECK(whole.prefers_whole(0));
  }

  TEST_CASE("ChunkedSource: refuses gaps, overlaps, and ranges outside the tensor") {
    const auto make = [](std::vector<Block> blocks) { MemorySource({4, 2}, std::move(blocks)); };
    CHECK_THROWS_WITH_AS(make({{{0, 0}, {3, 2}}}), doctest::Contains("6 of the 8"), FormatError);
    CHECK_THROWS_WITH_AS(make({{{0, 0}, {3, 2}}, {{2, 0}, {2, 2}}}), doctest::Contains("overlap"), FormatError);
    CHECK_THROWS_AS(make({}), FormatError);
    const MemorySource source({4, 2}, {{{0, 0}, {4, 2}}});
    std::vector<std::byte> out(8);
    CHECK_THROWS_AS(source.read(0, 7, 2, out, nullptr), std::invalid_argument);
    CHECK_THROWS_AS(source.read(0, ~std::uint64_t{0}, 2, out, nullptr), std::invalid_argument);
    CHECK_THROWS_AS(source.read(0, 0, 3, out, nullptr), std::invalid_argument);
    CHECK_THROWS_AS(source.read(1, 0, 2, out, nullptr), std::invalid_argument);
  }
}
