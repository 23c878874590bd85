#include "apps/memprobe/memprobe_job.hpp"

#include <doctest/doctest.h>

namespace {

fsdp::MemoryPrediction taking(std::int64_t bytes) {
  fsdp::MemoryPrediction prediction;
  prediction.host.states_bytes = bytes;
  return prediction;
}

}  // namespace

TEST_SUITE("jobs/model_search") {
  TEST_CASE("with_layers() continues the pattern of attention windows") {
    fsdp::ModelConfig config;
    config.traits.sliding = {true, true, false, true, true, false, true};
    using Layers = std::vector<bool>;

    CHECK(fsdp::detail::with_layers(config, 2).traits.sliding == Layers{true, true});
    CHECK(fsdp::detail::with_layers(config, 9).traits.sliding ==
          Layers{true, true, false, true, true, false, true, true, false});
    CHECK(fsdp::detail::with_layers(config, 9).num_layers == 9);
    config.traits.sliding.clear();
    CHECK(fsdp::detail::with_layers(config, 3).traits.sliding.empty());
  }

  TEST_CASE("search_model() finds the most layers that fit, zero, or its upper limit") {
    const auto most = [](std::int64_t budget_bytes) {
      fsdp::detail::MemoryBudget budget;
      budget.host_bytes = budget_bytes;
      return fsdp::detail::search_model(
                 {}, fsdp::ModelConfig(), budget,
                 [](const fsdp::ModelConfig& config) {
                   return taking(1000 + 10 * config.num_layers + (config.num_layers < 5 ? 7 : 0));
                 })
          .layers;
    };
    CHECK(most(1000) == 0);
    CHECK(most(1017) == 1);
    CHECK(most(1055) == 5);
    CHECK(most(11234) == 1023);
    CHECK(most(1'000'000) == fsdp::detail::kMostLayers);
  }
}
