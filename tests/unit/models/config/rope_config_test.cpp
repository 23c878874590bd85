// Rotary positions in config.json. Expected values come from transformers 4.57.6 and 5.23.0, run with each of these
// files; a file is rejected if the two versions differ or one fails. Phi-3 is the exception: version 4 fails with more
// than three keys, and version 5 with the older name su.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/types/error.hpp"
#include "lib/models/config/model_config.hpp"
#include "lib/models/config/rope.hpp"

using namespace fsdp;
using nlohmann::json;

namespace {

/// \param family  model_type
json file_of(const std::string& family, const std::string& rope) {
  json file{{"model_type", family},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"hidden_size", 16},
            {"intermediate_size", 24},
            {"vocab_size", 48},
            {"head_dim", 8},
            {"max_position_embeddings", 64},
            {"pad_token_id", 0},
            {"query_pre_attn_scalar", 8}};
  if (!family.starts_with("gemma2") && !family.starts_with("gemma3")) file.erase("query_pre_attn_scalar");
  if (family == "phi3") file.erase("head_dim");
  file.update(json::parse(rope));
  return file;
}

ModelConfig read(const std::string& family, const std::string& rope) {
  return model_config_from_json(file_of(family, rope), "in/config.json");
}

/// The values that must be equal for two files to describe the same model.
std::string positions(const ModelConfig& config) {
  json all{{"full", rope_frequencies(config)}, {"sliding", rope_frequencies(config, true)}};
  return all.dump();
}

std::string refusal(const std::string& family, const std::string& rope) {
  try {
    rope_frequencies(read(family, rope));
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

const std::string kLlama3 = R"("factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0)";

}  // namespace

TEST_SUITE("config/rope_config") {
  TEST_CASE("all spellings of a model give the same config") {
    const auto want = positions(read("llama", R"({"rope_theta": 500000.0})"));
    for (
        const char* same :
        {R"({"rope_theta": 500000})", R"({"rope_theta": 5e5, "rope_scaling": null})",
         R"({"rope_theta": 5e5, "rope_parameters": null})", R"({"rope_theta": 5e5, "rope_parameters": {}})",
         R"({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})",
         R"({"rope_parameters": {"rope_theta": 5e5}})",
         R"({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default", "factor": null, "partial_rotary_factor": null}})",
         R"({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})",
         R"({"rope_theta": 5e5, "rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [1, 1, 2]}})",
         R"({"rope_theta": 5e5, "rope_scaling": {"rope_type": "default", "factor": 4.0, "rope_theta": 5e5}})",
         R"({"rope_theta": 5e5, "partial_rotary_factor": 1.0})",
         // Both versions read rope_scaling and ignore rope_parameters.
         R"({"rope_theta": 5e5, "rope_scaling": {"rope_type": "default"},
              "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0}})"}) {
      CAPTURE(std::string(same));
      CHECK(positions(read("llama", same)) == want);
    }
  }

  TEST_CASE("rope_scaling is used beside rope_parameters, in every family") {
    for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma", "gemma2"}) {
      CAPTURE(std::string(family));
      const auto linear = [&](const char* factor) {
        return positions(read(
            family,
            std::string(R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": )") + factor + "}}"));
      };
      CHECK(linear("4.0") != positions(read(family, R"({"rope_theta": 1e4})")));
      CHECK(positions(read(family, R"({"rope_scaling": {"rope_type": "linear", "factor": 4.0},
              "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}})")) == linear("4.0"));
      CHECK(positions(read(family, R"({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0},
              "rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}})")) == linear("2.0"));
      for (const char* kind : {"rope_type", "type"})
        CHECK(refusal(family, std::string(R"({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
              "rope_scaling": {")") +
                                  kind + R"(": "ntk", "factor": 4.0}})")
                  .find("'ntk'") != std::string::npos);
    }
    CHECK(refusal("phi3", R"({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
              "rope_scaling": {"rope_type": "linear", "factor": 4.0}})")
              .find("rope_scaling") != std::string::npos);
    CHECK(positions(
              read("gemma3_text", R"({"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})")) ==
          positions(read("gemma3_text", R"({"rope_parameters": {"sliding_attention": {"rope_type": "default"},
              "full_attention": {"rope_type": "default", "rope_theta": 1e6}},
              "rope_scaling": {"rope_type": "linear", "factor": 8.0}})")));
  }

  TEST_CASE("fields that the two versions read differently, or only one reads, are rejected with file and key") {
    const std::map<std::string, std::vector<std::string>> refused{
        {"rope_theta",
         {R"({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}})",
          R"({"rope_scaling": {"rope_theta": 5e5, "rope_type": "default"}})",
          R"({"rope_theta": 1e4, "rope_scaling": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}})",
          R"({"rope_theta": null})", R"({"rope_theta": "10000"})",
          R"({"rope_theta": 5e5, "rope_parameters": {"rope_theta": null, "rope_type": "default"}})"}},
        {"rope_parameters",
         {R"({"rope_theta": 5e5, "rope_parameters": {"rope_type": "linear", "factor": 2.0}})",
          R"({"rope_parameters": []})", R"({"rope_theta": 1e4, "rope_scaling": null, "rope_parameters": 3})",
          R"({"rope_parameters": {"full_attention": {}, "sliding_attention": {}}})",
          R"({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "type": "dynamic", "factor": 2.0}})"}},
        {"rope_scaling",
         {R"({"rope_scaling": {}})", R"({"rope_scaling": "linear"})", R"({"rope_scaling": {"factor": 2.0}})",
          R"({"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 4.0}})",
          R"({"rope_scaling": {"type": "linear"}})", R"({"rope_scaling": {"type": "dynamic"}})",
          R"({"rope_scaling": {"type": "linear", "factor": "4.0"}})",
          R"({"rope_scaling": {"rope_type": "su", "short_factor": [1.0]}})",
          R"({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}})"}},
        {"rope_type", {R"({"rope_scaling": {"rope_type": null, "factor": 4.0}})"}},
        {"original_max_position_embeddings",
         {"{\"rope_scaling\": {\"rope_type\": \"llama3\", " + kLlama3 + "}}",
          "{\"original_max_position_embeddings\": 32, \"rope_scaling\": {\"rope_type\": \"llama3\", " + kLlama3 + "}}",
          "{\"original_max_position_embeddings\": 32, \"rope_scaling\": {\"rope_type\": \"llama3\", "
          "\"original_max_position_embeddings\": 16, " +
              kLlama3 + "}}"}},
        {"partial_rotary_factor",
         {R"({"partial_rotary_factor": 0.5})", R"({"partial_rotary_factor": null})",
          R"({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}})",
          R"({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}})"}}};
    for (const auto& [key, files] : refused) {
      for (const auto& file : files) {
        CAPTURE(file);
        const auto told = refusal("llama", file);
        CHECK(told.starts_with("in/config.json: "));
        CHECK(told.find(key) != std::string::npos);
      }
    }
    for (
        const char* file :
        {R"({"rope_scaling": {"type": "linear", "factor": 2.0}})",
         R"({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}})",
         R"({"rope_local_base_freq": 5e3, "rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_theta": 1e4}}})",
         R"({"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "linear", "factor": 2.0}}})"}) {
      CAPTURE(std::string(file));
      CHECK(refusal("gemma3_text", file).starts_with("in/config.json: "));
    }
    CHECK(
        refusal("phi3", R"({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}})").find("short_factor") !=
        std::string::npos);
  }

  TEST_CASE("rows may be longer than max_position_embeddings where the scaling was made for them") {
    const std::map<std::string, std::int64_t> longest{
        {R"({"rope_theta": 1e4})", 64},
        {R"({"rope_scaling": {"rope_type": "linear", "factor": 2.5}})", 160},
        {R"({"rope_scaling": {"type": "dynamic", "factor": 2.0}})", 1 << 24},
        {R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})", 256},
        {R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}})", 128},
        {R"({"rope_scaling": {"rope_type": "yarn", "factor": 1.5, "original_max_position_embeddings": 32}})", 64},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"original_max_position_embeddings\": 32, " + kLlama3 + "}}",
         64}};
    for (const auto& [rope, tokens] : longest) {
      CAPTURE(rope);
      const auto config = read("llama", rope);
      CHECK(longest_row(config) == tokens);
      CHECK(row_positions(config, 0) == 64);
      CHECK(row_positions(config, 100) == std::max<std::int64_t>(64, std::min<std::int64_t>(100, tokens)));
    }
    CHECK(longest_row(ModelConfig()) == ModelConfig().block_size);
  }

  TEST_CASE("Phi-3's trained length: of the file's top, else 4096; exported there, with the kind's newest name") {
    const std::string lists = R"("short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 2.1, 2.2, 2.3])";
    const auto with = [&](const std::string& kind, const std::string& more) {
      return "{" + more + "\"rope_scaling\": {" + kind + ", " + lists + "}}";
    };
    const auto want = read("phi3", with(R"("type": "longrope")", R"("original_max_position_embeddings": 32, )"));
    for (const auto* kind : {R"("type": "su")", R"("type": "yarn")", R"("rope_type": "longrope")",
                             R"("type": "su", "rope_type": "longrope", "original_max_position_embeddings": 8)"}) {
      const auto config = read("phi3", with(kind, R"("original_max_position_embeddings": 32, )"));
      CHECK(config.rope_scaling == want.rope_scaling);
      const auto out = hf_config(config);
      CHECK(out.at("rope_scaling").size() == 3);
      CHECK(out.at("rope_scaling").at("type") == "longrope");
      CHECK(out.at("original_max_position_embeddings") == 32);
    }
    CHECK(rope_frequencies(want, false, 32) != rope_frequencies(want, false, 33));
    CHECK(same_rope(want, 33, 64));
    CHECK(!same_rope(want, 32, 33));
    const auto default_length = read("phi3", with(R"("type": "longrope")", ""));
    CHECK(same_rope(default_length, 1, 4096));
    CHECK(!same_rope(default_length, 1, 4097));
  }

  TEST_CASE("only Gemma 3 has a separate base for sliding layers") {
    const char* with = R"({"rope_theta": 1e4, "rope_local_base_freq": 5.0, "sliding_window": 8})";
    CHECK(rope_frequencies(read("mistral", with), true) == rope_frequencies(read("mistral", with)));
    CHECK(rope_frequencies(read("gemma3_text", with), true) != rope_frequencies(read("gemma3_text", with)));
  }

  TEST_CASE("the language model of a multimodal Gemma 3 is that of text_config; other models with one are rejected") {
    const auto text = file_of("gemma3_text", R"({"rope_scaling": {"rope_type": "linear", "factor": 8.0}})");
    json whole{{"model_type", "gemma3"}, {"text_config", text}, {"vision_config", {{"hidden_size", 8}}}};
    const auto config = model_config_from_json(whole, "in/config.json");
    CHECK(model_config_to_json(config) == model_config_to_json(model_config_from_json(text, "text")));
    // Gemma 3 4B, whose file leaves out what transformers has as defaults.
    const auto four = model_config_from_json(
        json::parse(R"({"model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
          "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
          "sliding_window": 1024}})"),
        "in/config.json");
    CHECK(num_parameters(parameter_table(four)) == 3'880'263'168);
    CHECK(four.traits.window == 1024);
    whole["text_config"]["clip_qkv"] = 8;
    CHECK_THROWS_WITH_AS(model_config_from_json(whole, "in/config.json"), doctest::Contains("text_config"),
                         FormatError);
    whole["text_config"] = {{"model_type", "llama"}};
    CHECK_THROWS_WITH_AS(model_config_from_json(whole, "in/config.json"), doctest::Contains("llama"), FormatError);
    CHECK(refusal("llava", R"({"text_config": {"model_type": "llama"}})").find("text_config") != std::string::npos);
  }

  TEST_CASE("spell_rope_for_all: transformers 4 reads a config of transformers 5 equally") {
    const std::map<std::string, std::vector<std::string>> files{
        {"llama",
         {R"({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})",
          "{\"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"llama3\", "
          "\"original_max_position_embeddings\": 16, " +
              kLlama3 + "}}",
          R"({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 7.0}})"}},
        {"gemma3_text",
         {R"({"rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
               "sliding_attention": {"rope_theta": 2e4, "rope_type": "default"}}})"}},
        {"phi3", {R"({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5},
              "partial_rotary_factor": 0.5})"}}};
    for (const auto& [family, spellings] : files) {
      for (const auto& spelling : spellings) {
        CAPTURE(spelling);
        const auto before = file_of(family, spelling);
        auto after = before;
        CHECK(spell_rope_for_all(after, "config.json"));
        CHECK(!after.contains("rope_parameters"));
        CHECK(after.contains("rope_theta"));
        const auto one = model_config_from_json(before, "before"), other = model_config_from_json(after, "after");
        CHECK(positions(one) == positions(other));
        CHECK(one.traits.rotary_fraction == other.traits.rotary_fraction);
        CHECK(!spell_rope_for_all(after, "config.json"));
      }
    }
    // The trained length, which both versions would take from max_position_embeddings, is written as version 5 does.
    auto yarn = file_of("qwen3", R"({"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0}})");
    CHECK(spell_rope_for_all(yarn, "config.json"));
    CHECK(yarn.at("rope_scaling") ==
          json{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}});
    CHECK(yarn.at("rope_theta") == 1e6);
    // Other model types stay unchanged.
    json other{{"model_type", "bloom"}, {"rope_parameters", {{"rope_theta", 1e6}}}};
    CHECK(!spell_rope_for_all(other, "config.json"));
    auto unclear = file_of("llama", R"({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}})");
    CHECK_THROWS_WITH_AS(spell_rope_for_all(unclear, "in/config.json"), doctest::Contains("in/config.json: "),
                         FormatError);
  }
}
