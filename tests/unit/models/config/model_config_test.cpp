#include "lib/models/config/model_config.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lib/base/files/file.hpp"
#include "lib/base/types/error.hpp"
#include "tests/support/temp_files.hpp"

using namespace fsdp;
using nlohmann::json;

namespace {

/// Values from config.json of codellama/CodeLlama-7b-hf, and its parameter count.
const json kCodeLlama = {{"architectures", {"LlamaForCausalLM"}},
                         {"hidden_act", "silu"},
                         {"hidden_size", 4096},
                         {"intermediate_size", 11008},
                         {"max_position_embeddings", 16384},
                         {"model_type", "llama"},
                         {"num_attention_heads", 32},
                         {"num_hidden_layers", 32},
                         {"num_key_value_heads", 32},
                         {"pretraining_tp", 1},
                         {"rms_norm_eps", 1e-05},
                         {"rope_scaling", nullptr},
                         {"rope_theta", 1000000},
                         {"tie_word_embeddings", false},
                         {"torch_dtype", "bfloat16"},
                         {"vocab_size", 32016}};

json fixture(const std::string& name, const char* file) {
  return json::parse(read_text_file(std::filesystem::path(FSDP_FIXTURE_DIR) / "checkpoints" / name / file));
}

ModelConfig llama(json change = json::object()) {
  auto config = kCodeLlama;
  config.update(change);
  return model_config_from_json(config, "test");
}

}  // namespace

TEST_SUITE("config/model_config") {
  TEST_CASE("minGPT: JSON round trip") {
    const auto config = model_config_from_json(
        {{"n_layer", 3}, {"n_head", 4}, {"n_embd", 16}, {"vocab_size", 11}, {"block_size", 7}, {"dropout", 0.25}},
        "test");
    CHECK(config.architecture == Architecture::mingpt);
    CHECK(config.ffn_hidden_size == 64);
    const json written = {{"model_type", "mingpt"}, {"n_layer", 3},           {"n_head", 4},     {"n_embd", 16},
                          {"n_hidden", 64},         {"vocab_size", 11},       {"block_size", 7}, {"bias", true},
                          {"dropout", 0.25},        {"layer_norm_eps", 1e-5}, {"gelu", "tanh"},  {"tied_head", true}};
    CHECK(model_config_to_json(config) == written);
    ModelConfig gpt2;
    gpt2.block_size = 1024;
    CHECK(num_parameters(parameter_table(gpt2)) == 124439808);
    CHECK(tied_names(config).size() == 1);
  }

  TEST_CASE("Llama: CodeLlama-7b's parameters") {
    const auto config = llama();
    const auto table = parameter_table(config);
    CHECK(num_parameters(table) == 6738546688);
    CHECK(table.size() == 3 + 32 * 9);
    CHECK(table.back().name == "lm_head.weight");
    std::int64_t layer = 0;
    for (const auto& spec : table) {
      if (spec.block == 7) layer += num_parameters({spec});
    }
    CHECK(layer == 202383360);
    CHECK(config.block_size == 16384);
    CHECK(config.rope_theta == 1e6);
  }

  TEST_CASE("Llama: parameter names, shapes and order match the fixtures") {
    for (const auto* name : {"local_t201_ws4_llama", "local_t211_ws4_emptyshard", "local_t211_ws2_llama_nowrap"}) {
      const auto model = fixture(name, "expected.json").at("model");
      const auto table = parameter_table(llama({{"hidden_size", model.at("n_embd")},
                                                {"num_attention_heads", model.at("n_head")},
                                                {"num_key_value_heads", model.at("n_kv")},
                                                {"num_hidden_layers", model.at("n_layer")},
                                                {"intermediate_size", model.at("n_hidden")},
                                                {"vocab_size", model.at("vocab")}}));
      const auto expected = fixture(name, "param_shapes.json").at("parameters");
      REQUIRE(table.size() == expected.size());
      for (std::size_t i = 0; i < table.size(); ++i) {
        CHECK(table[i].name == expected[i].at("fqn"));
        CHECK(json(table[i].shape) == expected[i].at("shape"));
      }
    }
  }

  TEST_CASE("Llama: grouped heads, own head width, biases, tied head") {
    const auto config = llama({{"num_key_value_heads", 8},
                               {"head_dim", 64},
                               {"attention_bias", true},
                               {"mlp_bias", true},
                               {"tie_word_embeddings", true},
                               {"num_hidden_layers", 1}});
    const auto table = parameter_table(config);
    std::vector<std::string> names;
    for (const auto& spec : table) names.push_back(spec.name);
    CHECK(names ==
          std::vector<std::string>{"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                                   "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.k_proj.weight",
                                   "model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.v_proj.weight",
                                   "model.layers.0.self_attn.v_proj.bias", "model.layers.0.self_attn.o_proj.weight",
                                   "model.layers.0.self_attn.o_proj.bias", "model.layers.0.mlp.gate_proj.weight",
                                   "model.layers.0.mlp.gate_proj.bias", "model.layers.0.mlp.up_proj.weight",
                                   "model.layers.0.mlp.up_proj.bias", "model.layers.0.mlp.down_proj.weight",
                                   "model.layers.0.mlp.down_proj.bias", "model.layers.0.input_layernorm.weight",
                                   "model.layers.0.post_attention_layernorm.weight", "model.norm.weight"});
    CHECK(table[1].shape == std::vector<std::int64_t>{2048, 4096});
    CHECK(table[3].shape == std::vector<std::int64_t>{512, 4096});
    CHECK(table[7].shape == std::vector<std::int64_t>{4096, 2048});
    CHECK(table[8].shape == std::vector<std::int64_t>{4096});
    CHECK(tied_names(config) ==
          std::vector<std::pair<std::string, std::string>>{{"lm_head.weight", "model.embed_tokens.weight"}});
  }

  TEST_CASE("Llama: JSON round trip, also with transformers 5's rope_parameters") {
    const json scaling = {{"rope_type", "llama3"}, {"factor", 8.0}, {"original_max_position_embeddings", 8192}};
    const auto config = llama({{"rope_scaling", scaling}});
    CHECK(json::parse(config.rope_scaling) == scaling);
    const auto written = model_config_to_json(config);
    CHECK(model_config_to_json(model_config_from_json(written, "test")) == written);
    CHECK(written.at("rope_scaling") == scaling);
    CHECK(written.at("head_dim") == 128);
    auto both = scaling;
    both["rope_theta"] = 500000.0;
    auto five = kCodeLlama;
    five.erase("rope_theta");
    five.erase("rope_scaling");
    five["rope_parameters"] = both;
    const auto same = model_config_from_json(five, "test");
    CHECK(same.rope_theta == 500000.0);
    CHECK(json::parse(same.rope_scaling) == scaling);
    five["rope_parameters"] = {{"rope_theta", 5.0}, {"rope_type", "default"}};
    CHECK(model_config_from_json(five, "test").rope_scaling.empty());
  }

  TEST_CASE("mistral: layer_types choose the layers with a window, and are written unless all slide") {
    const auto folder = std::filesystem::path(FSDP_FIXTURE_DIR) / "families" / "mistral_window";
    auto said = json::parse(read_text_file(folder / "config.json"));
    const auto sliding = [&](const std::vector<std::string>& types) {
      said["layer_types"] = types;
      const auto config = model_config_from_json(said, "test");
      const auto saved = hf_config(config);
      // transformers opens a mistral with layer_types as a ministral: what was none stays none.
      const bool all = types == std::vector<std::string>(2, "sliding_attention");
      CHECK(saved.value("layer_types", json()) == (all ? json() : json(types)));
      CHECK(saved.at("sliding_window") == 8);
      CHECK(model_config_from_hf(saved, "saved").traits.sliding == config.traits.sliding);
      return config.traits.sliding;
    };
    CHECK(sliding({"full_attention", "sliding_attention"}) == std::vector<bool>{false, true});
    CHECK(sliding({"sliding_attention", "sliding_attention"}) == std::vector<bool>{true, true});
    CHECK(sliding({"full_attention", "full_attention"}) == std::vector<bool>{false, false});
    said["layer_types"] = nullptr;
    CHECK(model_config_from_json(said, "test").traits.sliding == std::vector<bool>{true, true});
    // The same model by its other name, which it keeps.
    said["model_type"] = "ministral";
    CHECK(sliding({"full_attention", "sliding_attention"}) == std::vector<bool>{false, true});
    const auto saved = hf_config(model_config_from_json(said, "test"));
    CHECK(saved.at("model_type") == "ministral");
    CHECK(saved.at("architectures") == json::array({"MinistralForCausalLM"}));
  }

  TEST_CASE("model_config_from_json: rejects impossible values, naming the source") {
    for (const auto& change :
         std::vector<json>{{{"num_key_value_heads", 5}},
                           {{"num_key_value_heads", -1}},
                           {{"head_dim", -4}},
                           {{"hidden_size", 0}},
                           {{"hidden_size", 4097}},
                           {{"hidden_size", "big"}},
                           {{"hidden_act", "relu"}},
                           {{"rope_scaling", 3}},
                           {{"rope_parameters", 3}},
                           {{"num_attention_heads", 1 << 14}, {"num_key_value_heads", 1}, {"head_dim", 1 << 16}},
                           {{"model_type", "bert"}},
                           {{"model_type", 5}},
                           {{"num_attention_heads", 2.5}},
                           {{"num_attention_heads", 32.0}},
                           {{"num_attention_heads", true}},
                           {{"num_hidden_layers", 1ULL << 63}},
                           {{"vocab_size", "32016"}},
                           {{"rope_theta", true}},
                           {{"attention_bias", 1}}}) {
      CAPTURE(change.dump());
      try {
        llama(change);
        FAIL("accepted");
      } catch (const FormatError& error) {
        CHECK(std::string(error.what()).starts_with("test: "));
      }
    }
    CHECK_THROWS_AS(model_config_from_json(json::array(), "test"), FormatError);
    CHECK_THROWS_AS(model_config_from_json({{"model_type", "llama"}}, "test"), FormatError);
  }

  TEST_CASE("read_model_config: rejects numbers out of range and sizes whose product overflows") {
    const test::TempDir directory;
    for (const auto* text :
         {R"({"model_type": "llama", "rope_theta": 1e999})",
          R"({"n_layer": 1, "n_head": 1, "n_embd": 9223372036854775807, "vocab_size": 2, "block_size": 2})"}) {
      replace_file(directory / "config.json", text);
      CHECK_THROWS_WITH_AS(read_model_config(directory / "config.json"), doctest::Contains("config.json: "),
                           FormatError);
    }
  }

  TEST_CASE("ids of tokens: exports keep those of config.json, of which generation_config.json's win") {
    const test::TempDir directory;
    const auto file = directory / "config.json", generation = directory / "generation_config.json";
    auto model = kCodeLlama;
    const auto exported = [&] {
      replace_file(file, model.dump());
      // A run keeps them in its checkpoints.
      const auto kept = model_config_from_json(model_config_to_json(read_model_config(directory.path())), "run.json");
      return hf_config(kept);
    };
    for (const auto* name : {"bos_token_id", "eos_token_id"}) model.erase(name);
    CHECK_FALSE(exported().contains("eos_token_id"));  // transformers' default stays
    model.update({{"bos_token_id", 7}, {"eos_token_id", {8, 9}}});
    CHECK(exported().at("bos_token_id") == 7);
    CHECK(exported().at("eos_token_id") == json::array({8, 9}));
    model["eos_token_id"] = nullptr;
    CHECK(exported().at("eos_token_id").is_null());
    replace_file(generation, R"({"eos_token_id": [3, 4], "temperature": 0.6})");
    CHECK(exported().at("bos_token_id") == 7);
    CHECK(exported().at("eos_token_id") == json::array({3, 4}));
    replace_file(generation, R"({"eos_token_id": "</s>"})");
    CHECK_THROWS_WITH_AS(exported(), doctest::Contains((generation.string() + ": field 'eos_token_id'").c_str()),
                         FormatError);
    replace_file(generation, "{");
    CHECK_THROWS_WITH_AS(exported(), doctest::Contains(generation.c_str()), FormatError);
  }

  TEST_CASE("hf_config: GPT-2 round trip") {
    ModelConfig config;
    config.num_layers = 2;
    config.ffn_hidden_size = 1000;
    config.block_size = 64;
    config.dropout = 0.1;
    config.layer_norm_eps = 1e-6;
    const auto hf = hf_config(config);
    CHECK(hf.at("model_type") == "gpt2");
    CHECK(hf.at("architectures") == json::array({"GPT2LMHeadModel"}));
    CHECK(hf.at("activation_function") == "gelu_new");
    CHECK(hf.at("n_positions") == 64);
    CHECK(hf.at("n_inner") == 1000);
    CHECK(hf.at("tie_word_embeddings") == true);
    CHECK(hf.at("eos_token_id") == 50256);
    config.bos_token_id = config.eos_token_id = "50256";
    CHECK(model_config_to_json(model_config_from_hf(hf, "test")) == model_config_to_json(config));
    config.bos_token_id = config.eos_token_id = "";
    config.vocab_size = 100;
    CHECK(hf_config(config).at("eos_token_id").is_null());
    for (const auto& change : std::vector<json>{{{"activation_function", "gelu"}},
                                                {{"scale_attn_weights", false}},
                                                {{"scale_attn_by_inverse_layer_idx", true}},
                                                {{"add_cross_attention", true}},
                                                {{"tie_word_embeddings", false}},
                                                {{"n_embd", 1LL << 61}},
                                                {{"n_head", 2.5}},
                                                {{"n_layer", 1ULL << 63}},
                                                {{"n_inner", 0}},
                                                {{"layer_norm_epsilon", "small"}},
                                                {{"model_type", "t5"}}}) {
      auto wrong = hf;
      wrong.update(change);
      CAPTURE(change.dump());
      CHECK_THROWS_AS(model_config_from_hf(wrong, "test"), FormatError);
    }
    auto plain = hf;
    plain["n_inner"] = nullptr;
    CHECK(model_config_from_hf(plain, "test").ffn_hidden_size == 4 * 768);
  }

  TEST_CASE("hf_config: Llama round trip") {
    const auto config = llama({{"num_key_value_heads", 8}});
    const auto hf = hf_config(config);
    CHECK(hf.at("architectures") == json::array({"LlamaForCausalLM"}));
    CHECK(model_config_to_json(model_config_from_hf(hf, "test")) == model_config_to_json(config));
    CHECK(model_config_from_hf(kCodeLlama, "test").kv_heads() == 32);
  }
}
