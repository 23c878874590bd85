#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/gguf/gguf_model.hpp"

using namespace fsdp;

TEST_SUITE("convert/gguf_model") {
  TEST_CASE("a family without GGUF files is refused by its name") {
    ModelConfig config;
    CHECK(gguf_architecture(config) == "gpt2");
    config.architecture = Architecture::falcon;
    config.traits.family = "falcon";
    CHECK_THROWS_WITH_AS(gguf_architecture(config), doctest::Contains("falcon"), RequestError);
  }
}
