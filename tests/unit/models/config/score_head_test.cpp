#include "lib/models/config/score_head.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/types/error.hpp"
#include "lib/models/config/adapter_config.hpp"
#include "lib/models/config/family.hpp"
#include "lib/models/config/model_config_fields.hpp"

using namespace fsdp;
using nlohmann::json;

namespace {

json tiny_llama() {
  return {{"model_type", "llama"}, {"hidden_size", 8},           {"intermediate_size", 12},
          {"vocab_size", 32},      {"num_attention_heads", 2},   {"num_hidden_layers", 1},
          {"pad_token_id", 3},     {"tie_word_embeddings", true}};
}

}  // namespace

TEST_SUITE("models/score head") {
  TEST_CASE("a head of each family: a matrix in place of the head, and the class of transformers") {
    for (const auto& family : config_detail::families()) {
      CAPTURE(family.type);
      ModelConfig config;
      config.architecture = family.kind->architecture;
      config.traits = family.traits;
      config.traits.family = family.type;
      config.num_layers = 1;
      config.num_heads = 2;
      config.embed_size = 8;
      const auto plain = parameter_table(config);
      add_score_head(config, {"a", "b", "c"}, 7);
      CHECK(config.outputs() == 3);
      CHECK(head_parameter(config) == kScoreWeight);
      CHECK(tied_names(config).empty());
      const auto table = parameter_table(config);
      CHECK(table.back().name == kScoreWeight);
      CHECK(table.back().shape == std::vector<std::int64_t>{3, 8});
      for (const auto& spec : table) {
        CHECK(spec.name != "lm_head.weight");
        if (spec.name != kScoreWeight) CHECK(std::ranges::count(plain, spec.name, &ParameterSpec::name) == 1);
      }
      const auto written = hf_config(config);
      const auto name = written["architectures"][0].get<std::string>();
      CHECK(name.ends_with("ForSequenceClassification"));
      CHECK(name.find("ForCausalLM") == std::string::npos);
      CHECK(written["id2label"] == json{{"0", "a"}, {"1", "b"}, {"2", "c"}});
      CHECK(written["pad_token_id"] == 7);
    }
  }

  TEST_CASE("read from transformers' files and from own ones") {
    auto config_json = tiny_llama();
    CHECK_FALSE(model_config_from_json(config_json, "x").has_scores());
    config_json["id2label"] = {{"0", "LABEL_0"}, {"1", "LABEL_1"}};
    CHECK_FALSE(model_config_from_json(config_json, "x").has_scores());  // a language model may have names, too
    config_json["architectures"] = {"LlamaForSequenceClassification"};
    auto config = model_config_from_json(config_json, "x");
    CHECK(config.labels == unnamed_labels(2));
    CHECK(config.pad_token_id == 3);
    CHECK_FALSE(config.score_is_new);
    config_json.erase("id2label");
    CHECK(model_config_from_json(config_json, "x").labels == unnamed_labels(2));
    config_json["num_labels"] = 1;
    CHECK(model_config_from_json(config_json, "x").labels == unnamed_labels(1));
    config.score_is_new = true;
    config.pad_token_id = 5;  // other than the id whose embedding stays as it is
    const auto again = model_config_from_json(model_config_to_json(config), "y");
    CHECK(again.labels == config.labels);
    CHECK(again.pad_token_id == 5);
    CHECK(again.score_is_new);
    CHECK(again.traits.padding_id == 3);
    CHECK_FALSE(model_config_from_json(hf_config(config), "z").score_is_new);
  }

  TEST_CASE("what is wrong is named") {
    const auto refused = [](const char* name, const json& value, const char* words) {
      auto config_json = tiny_llama();
      config_json["architectures"] = {"LlamaForSequenceClassification"};
      config_json[name] = value;
      CHECK_THROWS_WITH_AS(model_config_from_json(config_json, "file"), doctest::Contains(words), FormatError);
    };
    refused("id2label", {{"0", "a"}, {"2", "b"}}, "has no name for 1");
    refused("id2label", {{"0", "a"}, {"1", 5}}, "has no name for 1");
    refused("id2label", json::array(), "no object");
    refused("id2label", json::object(), "names no label");
    refused("id2label", {{"0", "a"}, {"1", "a"}}, "two labels are called 'a'");
    refused("num_labels", -3, "'num_labels' is -3");
    refused("num_labels", std::int64_t{1} << 40, "expected 1 to 65536");
    refused("problem_type", "multi_label_classification", "one label");
    refused("scores", 5, "'scores' is no object");
    refused("scores", {{"labels", json::array()}}, "no list of labels");
    refused("scores", {{"labels", {1}}}, "no list of labels");
    ModelConfig config;
    CHECK_THROWS_AS(add_score_head(config, {}, -1), RequestError);
    CHECK_THROWS_AS(add_score_head(config, unnamed_labels(kMostLabels + 1), -1), RequestError);
  }

  TEST_CASE("with adapters the head is trained and kept whole") {
    auto config = model_config_from_json(tiny_llama(), "x");
    add_score_head(config, unnamed_labels(1), -1);
    LoraConfig lora;
    lora.rank = 2;
    auto table = parameter_table(config);
    mark_saved_parameters(table, config, lora);
    for (const auto& spec : table) CHECK(spec.saved == (spec.name == kScoreWeight));
    const auto written = adapter_config_to_json(config, lora, "base");
    CHECK(written["task_type"] == "SEQ_CLS");
    CHECK(written["modules_to_save"] == json{"score"});
  }
}
