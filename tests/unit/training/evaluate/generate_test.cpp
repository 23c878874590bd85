// Texts written with the cache of keys and values, where rotary frequencies depend on the text's length.
#include "tests/support/torch_doctest.hpp"

#include <ATen/core/grad_mode.h>

#include "lib/models/config/rope.hpp"
#include "lib/ranks/thread_group.hpp"
#include "lib/training/evaluate/generate.hpp"
#include "lib/training/step/initialize.hpp"
#include "tests/support/small_model.hpp"

using namespace fsdp;

namespace {

ModelConfig small_llama(const std::string& scaling) {
  auto config = test::small_falcons()[1];
  config.architecture = Architecture::llama;
  config.traits = {};
  config.block_size = 12;
  config.rope_scaling = scaling;
  return config;
}

std::vector<std::int32_t> write(ProcessGroup& world, const ModelConfig& config, bool no_cache) {
  ModelRuntime runtime(world, config, {}, {}, 1);
  initialize_parameters(runtime, 3);
  // Initial matrices are too small for attention to matter.
  for (std::size_t i = 0; i < runtime.engine().num_parameters(); ++i) {
    auto shard = runtime.engine().shard(i, Access::update);
    shard.values().mul_(10);
    shard.finish();
  }
  runtime.engine().sync_parameters();
  SamplingOptions options;
  options.num_tokens = 24;
  options.temperature = 0;
  options.no_cache = no_cache;
  return generate(runtime, {5, 9, 40, 3, 77, 21, 8}, options);
}

}  // namespace

TEST_SUITE("eval/generate") {
  TEST_CASE("the cache changes no text, also across the lengths where rotary frequencies change") {
    const std::string lists = R"("short_factor": [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
                                 "long_factor": [2, 3, 4, 5, 6, 7, 8, 9])";
    const std::string plain;
    std::vector<std::int32_t> without;
    for (const auto& scaling :
         {plain, std::string(R"({"rope_type": "dynamic", "factor": 2.0})"),
          std::string(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12})"),
          R"({"rope_type": "longrope", "original_max_position_embeddings": 10, "factor": 3.0, )" + lists + "}"}) {
      CAPTURE(scaling);
      auto config = small_llama(scaling);
      if (scaling.find("longrope") != std::string::npos) config.block_size = 40;
      for (const int ranks : {1, 2}) {
        run_thread_ranks(ranks, ranks, [&](ProcessGroup& world) {
          const at::NoGradGuard no_grad;
          const auto text = write(world, config, false);
          CHECK(text == write(world, config, true));
          if (world.rank() == 0 && scaling.empty()) without = text;
          if (world.rank() == 0 && !scaling.empty()) CHECK(text != without);
        });
      }
    }
  }
}
