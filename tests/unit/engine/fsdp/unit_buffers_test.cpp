#include "lib/engine/sharding/shard_layout.hpp"
#include "tests/support/torch_doctest.hpp"

#include <ATen/ops/zeros.h>

using namespace fsdp;

namespace {

using Groups = std::vector<std::vector<std::size_t>>;

ParamLayout matrix(std::int64_t rows, int same_input) {
  ParamLayout layout{"", {rows, 4}};
  layout.same_input = same_input;
  return layout;
}

}  // namespace

TEST_SUITE("fsdp/side by side") {
  TEST_CASE("matrices with the same input share one buffer, in order, even if other parameters lie between") {
    const std::vector<ParamLayout> layouts{matrix(8, 1), matrix(4, 0), matrix(4, 1), matrix(6, 2), matrix(6, 2)};
    CHECK(side_by_side(layouts, 2, true) == Groups{{0, 2}, {1}, {3, 4}});
    CHECK(side_by_side(layouts, 1, true) == Groups{{0, 2}, {1}, {3, 4}});
    CHECK(side_by_side(layouts, 2, false) == Groups{{0}, {1}, {2}, {3}, {4}});

    const auto buffers = make_buffers(layouts, {0, 2}, 2, [](at::IntArrayRef sizes) { return at::zeros(sizes); });
    CHECK(buffers[0].sizes() == at::IntArrayRef({8, 4}));
    CHECK(buffers[1].sizes() == at::IntArrayRef({4, 4}));
    CHECK(buffers[1].is_alias_of(buffers[0]));
    CHECK(buffers[1].const_data_ptr<float>() == buffers[0].const_data_ptr<float>() + 32);
  }

  TEST_CASE("matrices separated by padding, or gathered or trained differently, do not share a buffer") {
    // 6 rows on 4 ranks are 2 per rank: 8 rows with padding.
    CHECK(side_by_side({matrix(8, 1), matrix(6, 1)}, 4, true) == Groups{{0}, {1}});
    auto frozen = matrix(8, 1), aligned = matrix(6, 1), wide = matrix(8, 1);
    frozen.trainable = false;
    aligned.alignment = 4;
    wide.shape = {8, 5};
    for (const auto& other : {frozen, aligned, wide})
      CHECK(side_by_side({matrix(8, 1), other}, 2, true) == Groups{{0}, {1}});
    CHECK(side_by_side({frozen, frozen}, 2, true) == Groups{{0, 1}});
  }
}
