#include "tests/support/torch_doctest.hpp"

#include "lib/training/data/step_reader.hpp"

#include <ATen/ops/equal.h>

#include <thread>
#include <vector>

#include "lib/base/types/error.hpp"
#include "tests/support/watched_loader.hpp"

namespace fsdp {
namespace {

/// The second of two ranks, which has fewer rows in a step's last round.
StepReaderOptions options() {
  return {.ranks = {.rank = 1, .size = 2}, .micro_batch_size = 2, .seed = 7, .has_dropout = true};
}

void check_equal(const std::vector<MicroBatch>& a, const std::vector<MicroBatch>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t m = 0; m < a.size(); ++m) {
    CHECK(a[m].rows == b[m].rows);
    CHECK(a[m].num_targets == b[m].num_targets);
    CHECK(at::equal(a[m].ids_N, b[m].ids_N));
    CHECK(at::equal(a[m].targets_N, b[m].targets_N));
    REQUIRE(a[m].sample_keys.defined() == b[m].sample_keys.defined());
    if (a[m].sample_keys.defined()) CHECK(at::equal(a[m].sample_keys, b[m].sample_keys));
  }
}

}  // namespace
}  // namespace fsdp

using namespace fsdp;
using fsdp::test::WatchedLoader;

TEST_SUITE("train/step_reader") {
  TEST_CASE("what a thread has read ahead is what would have been read, over the ends of epochs") {
    const WatchedLoader loader(11, 6, 40), other(11, 6, 40);
    StepReader ahead(loader, options()), at_once(other, options());
    for (std::int64_t step = 0; step < 6; ++step) {
      check_equal(ahead.read(7 * step, 7), at_once.read(7 * step, 7));
      CHECK((loader.reader() == std::this_thread::get_id()) == (step == 0));
      ahead.read_ahead(7 * (step + 1), 7);
    }
    ahead.wait();
    CHECK(loader.reads() == 2 * 7);  // two micro-batches a step, none read twice
    CHECK(loader.reader() != std::this_thread::get_id());
  }

  TEST_CASE("what is asked for instead is read at once") {
    const WatchedLoader loader(11, 6, 40), other(11, 6, 40);
    StepReader ahead(loader, options()), at_once(other, options());
    ahead.read_ahead(7, 7);
    check_equal(ahead.read(7, 6), at_once.read(7, 6));  // fewer
    CHECK(loader.reader() == std::this_thread::get_id());
    ahead.read_ahead(13, 7);
    check_equal(ahead.read(20, 7), at_once.read(20, 7));  // later ones
    ahead.read_ahead(27, 7);
    check_equal({ahead.read_micro_batch({3, 2})}, {at_once.read_micro_batch({3, 2})});
    CHECK(loader.reader() == std::this_thread::get_id());
    check_equal(ahead.read(27, 7), at_once.read(27, 7));  // still there
    CHECK(loader.reader() == std::this_thread::get_id());
  }

  TEST_CASE("what goes wrong ahead is thrown where it is asked for, and not elsewhere") {
    WatchedLoader loader(8, 6, 40);
    StepReader reader(loader, options());
    loader.damaged = 7;  // of the second rank in the second step of four rows
    CHECK_NOTHROW(reader.read(0, 4));
    reader.read_ahead(4, 4);
    CHECK_NOTHROW(reader.wait());
    CHECK_THROWS_WITH_AS(reader.read(4, 4), "row 7 is damaged", FormatError);
    reader.read_ahead(4, 4);
    CHECK_NOTHROW(reader.read(8, 4));
    reader.read_ahead(4, 4);  // and its rows are not read
  }
}
