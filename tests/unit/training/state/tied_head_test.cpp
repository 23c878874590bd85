// A tied model whose file has the head alone: writers that keep one tensor of two names keep either.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/formats/safetensors.hpp"
#include "lib/training/state/checkpoint.hpp"
#include "lib/training/state/load/plan_load.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;

namespace {

ModelConfig config_of(const std::string& family, bool tied) {
  return model_config_from_json({{"model_type", family},
                                 {"num_hidden_layers", 1},
                                 {"num_attention_heads", 2},
                                 {"num_key_value_heads", 1},
                                 {"head_dim", 4},
                                 {"hidden_size", 8},
                                 {"intermediate_size", 6},
                                 {"vocab_size", 10},
                                 {"pad_token_id", 0},
                                 {"tie_word_embeddings", tied}},
                                "test");
}

/// All of a model's tensors but its embedding, whose numbers are the head's.
std::filesystem::path write_head_alone(const std::filesystem::path& file, const ModelConfig& config,
                                       const std::string& prefix) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<ShardRecord> records;
  const auto table = parameter_table(config);
  bytes.reserve(table.size());
  for (const auto& spec : table) {
    if (spec.name == "lm_head.weight") continue;
    const auto name = spec.name == "model.embed_tokens.weight" ? "lm_head.weight" : spec.name;
    bytes.emplace_back(static_cast<std::size_t>(num_elements(spec.shape)) * 4);
    records.push_back({prefix + name, DType::f32, spec.shape, Shape(spec.shape.size(), 0), spec.shape, bytes.back()});
  }
  write_safetensors(file, records, {});
  return file;
}

}  // namespace

TEST_SUITE("checkpoint/tied_head") {
  TEST_CASE("the head's tensor is the embedding, in weights and in checkpoints, for every family that ties") {
    for (const std::string family : {"llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"}) {
      CAPTURE(family);
      const test::TempDir dir;
      const auto config = config_of(family, true);
      const auto source = open_source(write_head_alone(dir / "model.safetensors", config, ""));
      const auto weights = plan_weights(*source, dir.path(), config, {});
      CHECK(weights.weights.size() == parameter_table(config).size());
      CHECK(source->tensors()[weights.weights[0]].name == "lm_head.weight");
      CHECK(weights.copies.empty());
      for (const std::string prefix : {"", "model."}) {
        const Checkpoint checkpoint(write_head_alone(dir / "checkpoint.safetensors", config, prefix));
        const auto plan = plan_weights(checkpoint, config);
        CHECK(checkpoint.source().tensors()[plan.weights[0]].name == prefix + "lm_head.weight");
        CHECK(plan.copies.empty());
      }
    }
  }

  TEST_CASE("of a model that is not tied the head is no embedding") {
    const test::TempDir dir;
    const auto config = config_of("llama", false);
    const auto file = write_head_alone(dir / "model.safetensors", config_of("llama", true), "");
    CHECK_THROWS_WITH_AS(plan_weights(*open_source(file), dir.path(), config, {}),
                         doctest::Contains("model.embed_tokens.weight"), FormatError);
    CHECK_THROWS_WITH_AS(plan_weights(Checkpoint(file), config), doctest::Contains("model.embed_tokens.weight"),
                         FormatError);
  }
}
