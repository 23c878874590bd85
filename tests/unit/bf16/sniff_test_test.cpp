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
    const std::vector<bool> all(decoder.parameters.size(), true), none(decoder.parameters.size(), false);
    const std::vector<ProductShape> few{{5, 8, 8, true}, {5, 8, 24, true}, {5, 8, 32, true}, {5, 32, 8, true}};
    CHECK((product_shapes(decoder, all, 5) == few));
    CHECK_FALSE(product_shapes(decoder, none, 5).front().trains);
    for (const auto& shape : product_shapes(decoder, all, 1000000)) {
      CHECK(shape.rows * std::max(shape.in, shape.out) <= largest_block(decoder));
      CHECK(shape.rows > 1);
    }
    CHECK(product_shapes(decoder, all, 0).front().rows == 1);
  }

  TEST_CASE("a pair that is slower than half of its first speed is named") {
    CHECK(PairSpeeds::range({}) == "");
    const std::vector<PairSpeed> first{{0, 1, 100}, {1, 2, 10}, {0, 2, 4}};
    CHECK(PairSpeeds::range(first) == " at 4 to 100 GB/s");
    PairSpeeds speeds;
    CHECK(speeds.warnings(first).empty());
    const auto warnings = speeds.warnings({{0, 1, 51}, {1, 2, 4.5}, {0, 2, 40}});
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0] == "slow link: ranks 1 and 2 copy 4.5 GB/s, at first 10 GB/s");
  }
}
