// Facts about families, and orders of parameters.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/models/config/family.hpp"

using namespace fsdp;

namespace {

ModelConfig config_of(const nlohmann::json& more) {
  nlohmann::json json{{"num_hidden_layers", 2},
                      {"num_attention_heads", 4},
                      {"hidden_size", 32},
                      {"intermediate_size", 48},
                      {"vocab_size", 50},
                      {"n_layer", 2},
                      {"n_head", 4},
                      {"n_embd", 32},
                      {"block_size", 16},
                      {"max_position_embeddings", 16},
                      {"num_key_value_heads", 2},
                      {"n_positions", 16}};
  json.update(more);
  return model_config_from_json(json, "test");
}

std::vector<std::string> names_of(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const auto& spec : parameter_table(config)) names.push_back(spec.name);
  return names;
}

}  // namespace

TEST_SUITE("config/family") {
  TEST_CASE("a configuration finds its row by its model_type") {
    for (const std::string type :
         {"mingpt", "llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "gemma", "falcon"}) {
      CAPTURE(type);
      nlohmann::json json{{"model_type", type}};
      if (type == "phi3") json["pad_token_id"] = 0;
      CHECK(facts_of(config_of(json)).type == type);
      CHECK(find_facts(type)->type == type);
    }
    CHECK(facts_of(config_of({{"model_type", "gpt2"}})).type == "mingpt");
    CHECK(facts_of(ModelConfig()).title == "minGPT or GPT-2");
    CHECK(find_facts("gpt_unknown") == nullptr);
  }

  TEST_CASE("the family named by an architecture alone is the architecture's") {
    ModelConfig config;
    config.architecture = Architecture::falcon;
    CHECK(facts_of(config).type == "falcon");
    CHECK(facts_of(config).embedding == "transformer.word_embeddings.weight");
  }

  TEST_CASE("what other programs have of which family") {
    using Types = std::vector<std::string_view>;
    CHECK(types_with(&FamilyFacts::in_megatron) == Types{"llama", "mistral", "qwen2", "qwen3"});
    CHECK(types_with(&FamilyFacts::has_built_in_tokenizer) == Types{"mingpt", "gpt2"});
    CHECK(types_with(&FamilyFacts::tied) == Types{"gpt2", "gemma", "gemma2", "gemma3_text", "falcon"});
    CHECK(find_facts("ministral")->gguf == "llama");
    CHECK(find_facts("gemma3_text")->gguf == "gemma3");
    CHECK(find_facts("phi3")->gguf.empty());
    CHECK(find_facts("falcon")->gguf.empty());
  }

  TEST_CASE("each kind has embedding, head and mark among its names") {
    for (const std::string type : {"mingpt", "llama", "falcon"}) {
      CAPTURE(type);
      const auto config = config_of({{"model_type", type}, {"tie_word_embeddings", false}});
      const auto& facts = facts_of(config);
      const auto names = names_of(config);
      const auto has = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
      CHECK(has(facts.embedding));
      CHECK(has(facts.mark));
      CHECK(has(facts.head) == !facts.is_always_tied);
      CHECK(is_token_table(facts.embedding));
      CHECK(is_token_table(facts.head));
      CHECK(names[3].starts_with(std::string(facts.blocks) + "0."));
    }
    CHECK_FALSE(is_token_table("transformer.wpe.weight"));
  }

  TEST_CASE("parameter_order: that of the parameters, whatever order their names are in") {
    const nlohmann::json wide{{"tie_word_embeddings", false}};
    for (auto json : {nlohmann::json{{"model_type", "mingpt"}},
                      {{"model_type", "llama"}, {"attention_bias", true}},
                      {{"model_type", "gemma2"}},
                      {{"model_type", "falcon"}, {"parallel_attn", false}, {"bias", true}}}) {
      json.update(wide);
      CAPTURE(json.dump());
      auto names = names_of(config_of(json));
      const std::set<std::string> known(names.begin(), names.end());
      const auto order = parameter_order([&](const std::string& name) { return known.contains(name); });
      if (names.back() != "lm_head.weight") names.emplace_back("lm_head.weight");
      CHECK(order == names);
    }
    CHECK(parameter_order([](const std::string&) { return false; }).empty());
  }
}
