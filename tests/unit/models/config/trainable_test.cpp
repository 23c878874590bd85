#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"
#include "lib/models/config/trainable.hpp"

using namespace fsdp;

namespace {

ModelConfig twelve_blocks() {
  ModelConfig config;
  config.embed_size = 24;
  config.ffn_hidden_size = 96;
  config.vocab_size = 50;
  return config;
}

std::int64_t trained(const FreezeOptions& options) {
  const auto config = twelve_blocks();
  const auto trainable = trainable_parameters(config, options);
  return std::count(trainable.begin(), trainable.end(), true);
}

}  // namespace

TEST_SUITE("config/trainable") {
  TEST_CASE("matches_parameter: names, modules and globs") {
    const std::string name = "model.layers.1.mlp.up_proj.weight";
    for (const char* pattern : {"model.layers.1.mlp.up_proj.weight", "model.layers.1", "model", "model.layers.[01]",
                                "*", "*.mlp.*", "*.up_proj", "model.layers.?.mlp", "*weight"})
      CHECK_MESSAGE(matches_parameter(pattern, name), pattern);
    for (const char* pattern : {"model.layers.10", "model.layer", "layers.1", "mlp", "weight", "", "*.bias"})
      CHECK_MESSAGE(!matches_parameter(pattern, name), pattern);
    CHECK(!matches_parameter("transformer.h.1", "transformer.h.10.ln_1.weight"));
  }

  TEST_CASE("trainable_parameters: --train-only first, then --freeze") {
    constexpr std::int64_t kAll = 2 + 12 * 12 + 2;
    CHECK(trained({}) == kAll);
    CHECK(trained({{""}, {""}}) == kAll);
    CHECK(trained({{}, {"transformer.h.0", "transformer.w*"}}) == kAll - 12 - 2);
    CHECK(trained({{"transformer.h.1"}, {}}) == 12);
    CHECK(trained({{"transformer.h.1*"}, {"*.bias"}}) == 3 * 6);
    CHECK(trained({{"lm_head"}, {}}) == 1);  // tied to the token embedding
  }

  TEST_CASE("trainable_parameters: rejects patterns that match nothing or leave nothing to train") {
    CHECK_THROWS_WITH_AS(trained({{}, {"model.layers.0"}}),
                         "'model.layers.0' matches no parameter of the model, whose names are "
                         "transformer.wte.weight, ..., transformer.ln_f.bias",
                         RequestError);
    CHECK_THROWS_WITH_AS(trained({{"transformer.h.12"}, {}}), doctest::Contains("'transformer.h.12' matches no"),
                         RequestError);
    CHECK_THROWS_WITH_AS(trained({{"transformer.h.3"}, {"transformer.*"}}), "no parameter to train is left",
                         RequestError);
  }

  TEST_CASE("num_trained: counts the elements of trainable parameters") {
    const auto config = twelve_blocks();
    const auto table = parameter_table(config);
    CHECK(num_trained(table, trainable_parameters(config, {})) == num_parameters(table));
    const auto upper = trainable_parameters(config, {{"transformer.h.[6-9]", "transformer.h.1[01]"}, {}});
    CHECK(num_trained(table, upper) == 6 * (12 * 24 * 24 + 13 * 24));
  }

  TEST_CASE("saved_freeze_options: parses the options stored by a run") {
    const auto some = saved_freeze_options({{"freeze", "a b"}, {"train-only", "c"}, {"lr", "1"}});
    CHECK(some.freeze == std::vector<std::string>{"a", "b"});
    CHECK(some.train_only == std::vector<std::string>{"c"});
    CHECK(saved_freeze_options(nlohmann::json()).freeze.empty());
    CHECK(saved_freeze_options({{"freeze", 3}}).freeze.empty());
  }
}
