#include "lib/training/state/retention.hpp"

#include <doctest/doctest.h>

using namespace fsdp;
using Steps = std::vector<std::int64_t>;

namespace {

KnownCheckpoint regular(std::int64_t step, std::int64_t best = -1) { return {step, false, best}; }
KnownCheckpoint for_best(std::int64_t step) { return {step, true, step}; }

}  // namespace

TEST_SUITE("checkpoint/retention") {
  TEST_CASE("superseded_checkpoints: the last N stay") {
    const std::vector<KnownCheckpoint> older{regular(1), regular(2), regular(3)};
    CHECK(superseded_checkpoints(older, regular(4), {.keep_last = 2, .proven_step = 4}).steps == Steps{2, 1});
    CHECK(superseded_checkpoints(older, regular(4), {.keep_last = 0}).steps.empty());
    CHECK(superseded_checkpoints({}, regular(4), {.keep_last = 1}).steps.empty());
  }

  TEST_CASE("superseded_checkpoints: the newest proven one stays until a newer one is proven") {
    const std::vector<KnownCheckpoint> older{regular(1), regular(2)};
    const auto result = superseded_checkpoints(older, regular(3), {.keep_last = 1, .proven_step = 2});
    CHECK(result.steps == Steps{1});
    CHECK(result.until_proven);
    CHECK_FALSE(superseded_checkpoints(older, regular(3), {.keep_last = 1, .proven_step = 3}).until_proven);
  }

  TEST_CASE("superseded_checkpoints: the best stays beside the last N, and takes no place from them") {
    const std::vector<KnownCheckpoint> older{for_best(1), for_best(2), regular(3, 2), regular(4, 2), regular(5, 2)};
    CHECK(superseded_checkpoints(older, regular(6, 2), {.keep_last = 2, .proven_step = 6, .linked_best = 2}).steps ==
          Steps{4, 3, 1});
    CHECK(superseded_checkpoints(older, for_best(6), {.keep_last = 2, .proven_step = 6, .linked_best = 6}).steps ==
          Steps{3, 2, 1});
    // All are kept but for those that were saved as the best and are it no more.
    CHECK(superseded_checkpoints(older, regular(6, 2), {.proven_step = 6, .linked_best = 2}).steps == Steps{1});
  }

  TEST_CASE("superseded_checkpoints: who goes back to the newest proven one finds its best") {
    const std::vector<KnownCheckpoint> older{for_best(1), regular(2, 1)};
    const auto result =
        superseded_checkpoints(older, for_best(3), {.keep_last = 1, .proven_step = 2, .linked_best = 3});
    CHECK(result.steps.empty());
    CHECK(superseded_checkpoints(older, for_best(3), {.keep_last = 1, .proven_step = 3, .linked_best = 3}).steps ==
          Steps{1});
  }

  TEST_CASE("checkpoints_to_strip: those before the newest proven one and beyond the N newest lose the optimizer") {
    const std::vector<KnownCheckpoint> kept{regular(1), regular(2), for_best(3), regular(4), regular(5)};
    CHECK(checkpoints_to_strip(kept, 1, 5) == Steps{1, 2, 3, 4});
    CHECK(checkpoints_to_strip(kept, 2, 5) == Steps{1, 2, 3});
    // A loss that is not finite sends the run back to 3, and later perhaps to 4.
    CHECK(checkpoints_to_strip(kept, 1, 3) == Steps{1, 2});
    CHECK(checkpoints_to_strip(kept, 4, 3) == Steps{1});
    CHECK(checkpoints_to_strip(kept, 1, 0).empty());
    CHECK(checkpoints_to_strip(kept, 0, 5).empty());
    CHECK(checkpoints_to_strip(kept, 9, 5).empty());
    auto done = kept;
    done[1].weights_alone = true;
    CHECK(checkpoints_to_strip(done, 2, 5) == Steps{1, 3});
  }
}
