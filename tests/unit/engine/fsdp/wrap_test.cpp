#include <doctest/doctest.h>

#include <algorithm>

#include "lib/base/types/error.hpp"
#include "lib/engine/sharding/policy.hpp"
#include "lib/engine/sharding/wrap.hpp"

using namespace fsdp;

namespace {

/// Root parameters 0 and 7; three blocks of two parameters with 10 + 20, 30 + 40 and 5 + 5 elements.
const std::vector<WrapInput> kParameters{{100, -1}, {10, 0}, {20, 0}, {30, 1}, {40, 1}, {5, 2}, {5, 2}, {1, -1}};

using Units = std::vector<std::vector<int>>;

}  // namespace

TEST_SUITE("fsdp/wrap") {
  TEST_CASE("make_units: one per block plus the root") {
    CHECK((make_units(kParameters, parse_wrap("block")) == Units{{0, 7}, {1, 2}, {3, 4}, {5, 6}}));
  }

  TEST_CASE("make_units: none puts everything into the root") {
    CHECK((make_units(kParameters, parse_wrap("none")) == Units{{0, 1, 2, 3, 4, 5, 6, 7}}));
  }

  TEST_CASE("make_units: size joins whole blocks until a unit is large enough") {
    CHECK((make_units(kParameters, parse_wrap("size:1")) == Units{{0, 7}, {1, 2}, {3, 4}, {5, 6}}));
    CHECK((make_units(kParameters, parse_wrap("size:30")) == Units{{0, 7}, {1, 2}, {3, 4}, {5, 6}}));
    CHECK((make_units(kParameters, parse_wrap("size:31")) == Units{{0, 7}, {1, 2, 3, 4}, {5, 6}}));
    CHECK((make_units(kParameters, parse_wrap("size:100")) == Units{{0, 7}, {1, 2, 3, 4}, {5, 6}}));
    CHECK((make_units(kParameters, parse_wrap("size:101")) == Units{{0, 7}, {1, 2, 3, 4, 5, 6}}));
  }

  TEST_CASE("parse_wrap: parses the output of to_string; errors name the choices") {
    for (const char* text : {"block", "none", "size:12345"}) CHECK((to_string(parse_wrap(text)) == text));
    for (const char* text :
         {"", "blocks", "size:", "size:0", "size:-3", "size:3x", "size: 3", "size:99999999999999999999"}) {
      CAPTURE(text);
      CHECK_THROWS_AS(parse_wrap(text), RequestError);
    }
    CHECK_THROWS_WITH(parse_wrap("all"), "wrap is 'all', choose from block, none, size:N (N parameters per unit)");
  }
}

TEST_SUITE("fsdp/policy") {
  TEST_CASE("kShardingNames: parses the output of to_string; hybrid-shard means hybrid-full-shard") {
    for (const char* text :
         {"full-shard", "grad-shard", "optimizer-shard", "no-shard", "hybrid-full-shard", "hybrid-grad-shard"}) {
      CHECK((to_string(parse_value(kShardingNames, text, "--sharding")) == text));
    }
    CHECK((parse_value(kShardingNames, "hybrid-shard", "--sharding") == Sharding::hybrid_full_shard));
    CHECK_THROWS_AS(parse_value(kShardingNames, "FULL_SHARD", "--sharding"), UsageError);
    for (const char* text : {"none", "pre", "post"})
      CHECK((to_string(parse_value(kPrefetchNames, text, "--backward-prefetch")) == text));
    CHECK_THROWS_AS(parse_value(kPrefetchNames, "both", "--backward-prefetch"), UsageError);
    for (const char* text : {"float32", "bf16", "fp16"})
      CHECK((float_type_name(parse_value(kFloatTypeNames, text, "--precision")) == text));
    CHECK((parse_value(kFloatTypeNames, "bfloat16", "--x") == c10::ScalarType::BFloat16));
    CHECK_THROWS_WITH_AS(parse_value(kFloatTypeNames, "int8", "--reduce-dtype"),
                         doctest::Contains("--reduce-dtype is 'int8'"), UsageError);
  }

  TEST_CASE("parse_activation_checkpointing: returns N for every N-th block, and parses its own names") {
    for (const char* text : {"none", "all", "every:3"})
      CHECK((activation_checkpointing_name(parse_activation_checkpointing(text)) == text));
    // An option without a value, and flags as config files have them.
    CHECK(parse_activation_checkpointing("") == 0);
    CHECK(parse_activation_checkpointing("false") == 0);
    CHECK(parse_activation_checkpointing("true") == 1);
    for (const char* text : {"every:", "every:0", "every:-1", "every:2x", "every:1000001", "some"})
      CHECK_THROWS_AS(parse_activation_checkpointing(text), RequestError);
  }
}
