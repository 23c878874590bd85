#include "lib/bf16/sniff_test.hpp"

#include "lib/compute/ops/ops.hpp"
#include "tests/support/torch_doctest.hpp"

using namespace fsdp;
using namespace fsdp::detail;

TEST_SUITE("bf16/sniff_test") {
  Decoder tiny() {
    ModelConfig config;
    config.num_layers = 2;
    config.num_heads = 2;
    config.embed_size = 8;
    config.ffn_hidden_size = 32;
    config.vocab_size = 40;
    config.block_size = 16;
    return make_decoder(config, host_ops());
  }

  TEST_CASE("the products of a model: each shape once, in rows that fit beside a block") {
    const auto decoder = tiny();
    CHECK(largest_block(decoder) == 12 * 8 * 8 + 4 * 8 + 3 * 8 + 8 + 32 + 8);
    const std::vector<ProductShape> few{{5, 8, 8}, {5, 8, 24}, {5, 8, 32}, {5, 8, 40}, {5, 32, 8}};
    CHECK((product_shapes(decoder, 5) == few));
    for (const auto& shape : product_shapes(decoder, 1000000)) {
      CHECK(shape.rows * std::max(shape.in, shape.out) <= largest_block(decoder));
      CHECK(shape.rows > 1);
    }
    CHECK(product_shapes(decoder, 0).front().rows == 1);
  }

  TEST_CASE("a pair that is slower than half of the median of its kind is named") {
    CHECK(summarize({}).speeds == "");
    const std::vector<PairSpeed> pairs{{0, 1, true, 100}, {2, 3, true, 110}, {1, 2, true, 90},  {3, 0, true, 49},
                                       {0, 4, false, 10}, {1, 5, false, 9},  {2, 6, false, 11}, {3, 7, false, 4}};
    const auto summary = summarize(pairs);
    CHECK(summary.speeds == " at 4 to 110 GB/s");
    REQUIRE(summary.warnings.size() == 2);
    CHECK(summary.warnings[0] == "slow link: ranks 3 and 0 copy 49 GB/s, the median pair of a node 100 GB/s");
    CHECK(summary.warnings[1] == "slow link: ranks 3 and 7 copy 4 GB/s, the median pair of two nodes 10 GB/s");
    CHECK(summarize({{0, 1, true, 100}, {1, 2, true, 1}, {2, 0, true, 100}}).warnings.empty());
  }
}
