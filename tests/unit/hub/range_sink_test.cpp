#include "lib/hub/file_download.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "tests/unit/hub/hub_test_support.hpp"

using namespace fsdp;

namespace {

struct Rig {
  Rig(std::vector<ByteRange> ranges, std::uint64_t file_bytes, bool whole, std::uint64_t piece = 4)
      : content(test::random_bytes(file_bytes, 1)) {
    for (const auto& range : ranges) left.add(range);
    sink.emplace(RangeSink::Wanted{file_bytes, ranges.front().begin, whole}, left, piece,
                 [this](std::uint64_t begin, std::span<const std::byte> bytes) {
                   REQUIRE(begin + bytes.size() <= content.size());
                   CHECK(std::equal(bytes.begin(), bytes.end(), content.begin() + static_cast<std::ptrdiff_t>(begin)));
                   stored.add({begin, begin + bytes.size()});
                   ++pieces;
                 });
  }
  /// Sends content[begin, end) in pieces of `step`; true if the sink accepted all of them.
  bool send(std::uint64_t begin, std::uint64_t end, std::uint64_t step) {
    for (auto at = begin; at < end; at += step) {
      if (!sink->body(std::span(content).subspan(at, std::min(step, end - at)))) return false;
    }
    return true;
  }
  test::Bytes content;
  IntervalSet left;
  IntervalSet stored;
  int pieces = 0;
  std::optional<RangeSink> sink;
};

HttpHead partial(const std::string& range) { return {206, {{"content-range", range}}}; }

}  // namespace

TEST_SUITE("hub/range_sink") {
  TEST_CASE("RangeSink: stores the requested range in pieces and nothing beyond it") {
    for (const std::uint64_t step : {1u, 3u, 7u, 100u}) {
      Rig rig({{10, 30}}, 100, false);
      CHECK(rig.sink->head(partial("bytes 10-29/100")));
      CHECK_FALSE(rig.send(10, 60, step));
      rig.sink->flush();
      CHECK(rig.left.empty());
      CHECK(rig.stored.ranges() == std::vector<ByteRange>{{10, 30}});
      CHECK(rig.sink->stored_bytes() == 20);
      if (step == 1) CHECK(rig.pieces == 5);
    }
  }

  TEST_CASE("RangeSink: flush keeps the bytes that arrived before the connection was cut") {
    Rig rig({{0, 100}}, 100, true, 1000);
    CHECK(rig.sink->head({200, {{"content-length", "100"}}}));
    CHECK(rig.send(0, 37, 10));
    CHECK(rig.stored.empty());
    rig.sink->flush();
    CHECK(rig.stored.ranges() == std::vector<ByteRange>{{0, 37}});
    CHECK(rig.left.ranges() == std::vector<ByteRange>{{37, 100}});
  }

  TEST_CASE("RangeSink: takes only the missing parts of a whole file") {
    Rig rig({{5, 8}, {20, 21}, {40, 60}}, 100, true);
    CHECK(rig.sink->head({200, {}}));
    CHECK_FALSE(rig.send(0, 100, 9));
    rig.sink->flush();
    CHECK(rig.stored.ranges() == std::vector<ByteRange>{{5, 8}, {20, 21}, {40, 60}});
  }

  TEST_CASE("RangeSink: does not read a whole file sent in place of a range") {
    Rig rig({{50, 60}}, 100, false);
    CHECK_FALSE(rig.sink->head({200, {{"content-length", "100"}}}));
    CHECK(rig.sink->range_ignored());
    CHECK(rig.sink->complaint().empty());
  }

  TEST_CASE("RangeSink: false headers are named and nothing is stored") {
    for (const auto& head : {partial("bytes 11-29/100"), partial("bytes 10-29/99"), partial("bytes 10-29"), partial(""),
                             partial("bytes */100"), partial("octets 10-29/100"), partial("bytes 10-29/100x"),
                             partial("bytes 99999999999999999999-1/100"), HttpHead{200, {{"content-length", "99"}}},
                             HttpHead{200, {{"content-encoding", "gzip"}}}}) {
      CAPTURE(head.header("content-range"));
      Rig rig({{10, 30}}, 100, true);
      CHECK_FALSE(rig.sink->head(head));
      CHECK_FALSE(rig.sink->complaint().empty());
      rig.sink->flush();
      CHECK(rig.stored.empty());
    }
    Rig unknown_total({{10, 30}}, 100, true);
    CHECK(unknown_total.sink->head(partial("bytes 10-29/*")));
  }

  TEST_CASE("RangeSink: the body of an error is not stored") {
    Rig rig({{0, 100}}, 100, true);
    CHECK(rig.sink->head({503, {}}));
    CHECK(rig.send(0, 100, 10));
    rig.sink->flush();
    CHECK(rig.stored.empty());
    CHECK(rig.left.size() == 100);
  }
}
