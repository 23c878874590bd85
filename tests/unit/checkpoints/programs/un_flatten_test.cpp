#include "lib/checkpoints/programs/fsdp1/un_flatten.hpp"
#include "lib/base/types/remedy.hpp"
#include "lib/checkpoints/programs/formats.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/advice_of.hpp"
#include "tests/unit/checkpoints/programs/convert_test_support.hpp"

using namespace fsdp;

namespace {

const std::vector<std::string> kFixtures{"local_t113_ws2_gpt",
                                         "local_t201_ws2_gpt",
                                         "local_t201_ws3_gpt_uop",
                                         "local_t201_ws4_llama",
                                         "local_t211_ws1_gpt",
                                         "local_t211_ws2_llama_nowrap",
                                         "local_t211_ws2_llama_uop_mpbf16",
                                         "local_t211_ws3_gpt_bf16",
                                         "local_t211_ws4_emptyshard",
                                         "local_t211_ws4_gpt_pad",
                                         "local_t241_ws2_gpt_nested",
                                         "local_t241_ws2_gpt_uop",
                                         "local_t241_ws3_gpt_rawoptim"};

std::shared_ptr<const Source> local(const std::string& name) { return open_source(test::fixture(name) / "ckpt"); }
std::unique_ptr<Source> truth(const std::string& name) {
  return open_source(test::fixture(name) / "expected.safetensors");
}

/// The model of the fixture as a configuration of fsdp-finetune or transformers.
nlohmann::json config_of(const nlohmann::json& model) {
  if (model.at("arch") == "gpt") {
    return {{"model_type", "mingpt"},         {"n_layer", model.at("n_layer")},   {"n_head", model.at("n_head")},
            {"n_embd", model.at("n_embd")},   {"n_hidden", model.at("n_hidden")}, {"vocab_size", model.at("vocab")},
            {"block_size", model.at("block")}};
  }
  return {{"model_type", "llama"},
          {"num_hidden_layers", model.at("n_layer")},
          {"num_attention_heads", model.at("n_head")},
          {"num_key_value_heads", model.at("n_kv")},
          {"hidden_size", model.at("n_embd")},
          {"intermediate_size", model.at("n_hidden")},
          {"vocab_size", model.at("vocab")}};
}

ParameterShapes shapes_of(const std::string& name) {
  return read_parameter_shapes(test::fixture(name) / "param_shapes.json");
}

}  // namespace

TEST_SUITE("convert/local_state") {
  TEST_CASE("un_flatten: every fixture, with shapes from param_shapes.json") {
    for (const auto& name : kFixtures) {
      CAPTURE(name);
      UnFlattenOptions options{shapes_of(name), {}, {}};
      // The list of this fixture lacks the tied head.
      if (name == "local_t113_ws2_gpt") options.ties = {{"lm_head.weight", "transformer.wte.weight"}};
      const auto source = un_flatten(local(name), options);
      test::check_same(*source, *truth(name));
      const bool is_local = name != "local_t211_ws1_gpt";
      CHECK(source->info().format == (is_local ? "FSDP1 local state" : "DCP"));
    }
  }

  TEST_CASE("un_flatten: shapes from the configuration of the model") {
    const test::TempDir directory;
    for (const auto& name : kFixtures) {
      CAPTURE(name);
      const auto model = test::truth_of(test::fixture(name)).at("model");
      test::write_file(directory / "config.json", config_of(model).dump());
      const UnFlattenOptions options{parameter_shapes_of_config(directory.path()), {}, {}};
      if (!model.value("tied", true)) {
        // The head of our minGPT is tied, the head of this one is not.
        CHECK_THROWS_AS(un_flatten(local(name), options), FormatError);
        continue;
      }
      test::check_same(*un_flatten(local(name), options), *truth(name));
    }
  }

  TEST_CASE("un_flatten: shapes from a full checkpoint of the same model") {
    for (const auto& name : kFixtures) {
      CAPTURE(name);
      const auto reference = test::fixture(name) / "expected.safetensors";
      const UnFlattenOptions options{parameter_shapes_of_reference(reference), {}, {}};
      test::check_same(*un_flatten(local(name), options), *truth(name));
    }
    // A .pt keeps the order itself, with buffers between the parameters.
    for (const auto& [name, reference] :
         std::vector<std::pair<std::string, std::string>>{{"local_t201_ws2_gpt", "full_t113_ws2_gpt"},
                                                          {"local_t211_ws2_llama_nowrap", "full_t211_ws3_llama"},
                                                          {"local_t241_ws3_gpt_rawoptim", "full_t201_ws2_minimal"}}) {
      CAPTURE(reference);
      const UnFlattenOptions options{parameter_shapes_of_reference(test::fixture(reference) / "ckpt.pt"), {}, {}};
      test::check_same(*un_flatten(local(name), options), *truth(name));
    }
  }

  TEST_CASE("un_flatten: reads only padding before tensors are read") {
    test::MemorySource flat;
    std::vector<float> values(24, 1.0f);
    for (const auto i : {6u, 7u, 13u, 14u, 15u, 19u, 20u, 21u, 22u, 23u}) values[i] = 42.0f;
    flat.add("_flat_param", DType::f32, {24}, test::bytes_of(values));
    flat.set_shards(8);
    const auto source = std::make_shared<test::MemorySource>(flat);
    const ParameterShapes shapes{{{"a.weight", {2, 3}}, {"a.bias", {5}}, {"b.bias", {3}}}, {}, "test"};
    const auto result = un_flatten(source, {shapes, {}, {}});
    CHECK(source->reads() == 3);
    CHECK(test::values_of<float>(test::read_whole(*result, 2)) == std::vector<float>(3, 1.0f));
    CHECK(result->tensors()[0].num_shards == 2);
  }

  TEST_CASE("un_flatten: refuses padding that does not hold 42") {
    for (const std::size_t broken : {6u, 13u, 23u}) {
      auto source = std::make_shared<test::MemorySource>();
      std::vector<float> values(24, 42.0f);
      values[broken] = 41.0f;
      source->add("_flat_param", DType::f32, {24}, test::bytes_of(values));
      source->set_shards(8);
      const ParameterShapes shapes{{{"a.weight", {2, 3}}, {"a.bias", {5}}, {"b.bias", {3}}}, {}, "test"};
      const auto message = test::message_of<FormatError>([&] { un_flatten(source, {shapes, {}, {}}); });
      CHECK_MESSAGE(
          message.find("element " + std::to_string(broken) + " should be padding, 42, and is 41") != std::string::npos,
          message);
    }
  }

  TEST_CASE("un_flatten: refuses shapes for which two paddings fit") {
    // 2 and 6 elements end at 10 with offsets in multiples of 4, at 14 with multiples of 8: for 8 ranks both become 16.
    auto source = std::make_shared<test::MemorySource>();
    source->add("_flat_param", DType::f32, {16}, test::bytes_of(std::vector<float>(16, 42.0f)));
    source->set_shards(8);
    const ParameterShapes shapes{{{"a", {2}}, {"b", {6}}}, {}, "test"};
    CHECK_THROWS_AS(un_flatten(source, {shapes, {}, {}}), FormatError);
  }

  TEST_CASE("un_flatten: refuses shapes that do not fit, with the reason for each unit") {
    auto shapes = shapes_of("local_t201_ws2_gpt");
    for (auto& entry : shapes.parameters) {
      if (entry.name == "transformer.h.1.mlp.c_fc.weight") entry.shape = {53, 24};
    }
    const auto message = test::message_of<FormatError>([&] {
      un_flatten(local("local_t201_ws2_gpt"), {shapes, {}, {}});
    });
    CHECK_MESSAGE(message.find("\"transformer.h.1._flat_param\" has 5068 elements") != std::string::npos, message);
    CHECK_MESSAGE(message.find("need 5092 without padding") != std::string::npos, message);
    CHECK_MESSAGE(message.find("transformer.h.0") == std::string::npos, message);
    // Each fixture with the shapes of another model.
    for (const auto& name : kFixtures) {
      if (name == "local_t211_ws1_gpt" || name.find("llama") != std::string::npos ||
          name == "local_t211_ws4_emptyshard") {
        continue;
      }
      CAPTURE(name);
      CHECK_THROWS_AS(un_flatten(local(name), {shapes_of("local_t211_ws2_llama_nowrap"), {}, {}}), Error);
      CHECK_THROWS_AS(un_flatten(local(name), {shapes, {}, {}}), Error);
    }
  }

  TEST_CASE("un_flatten: refuses a missing and an extra parameter") {
    for (const auto& name : kFixtures) {
      if (name == "local_t211_ws1_gpt") continue;
      CAPTURE(name);
      auto shapes = shapes_of(name);
      auto fewer = shapes, more = shapes;
      fewer.parameters.erase(fewer.parameters.begin() + 2);
      more.parameters.push_back({more.parameters[1].name + "_2", {3}});
      CHECK_THROWS_AS(un_flatten(local(name), {fewer, {}, {}}), Error);
      CHECK_THROWS_AS(un_flatten(local(name), {more, {}, {}}), Error);
    }
  }

  TEST_CASE("un_flatten: ties") {
    const std::string name = "local_t201_ws3_gpt_uop";
    auto shapes = shapes_of(name);
    REQUIRE(shapes.ties.size() == 1);
    CHECK(shapes.ties[0] == std::pair<std::string, std::string>{"lm_head.weight", "transformer.wte.weight"});
    // The slice of the head must not be taken for a tensor while the tie is unknown.
    shapes.ties.clear();
    const auto advice = test::advice_of([&] { un_flatten(local(name), {shapes, {}, {}}); });
    CHECK(advice.remedy == Remedy::list_or_tie);
    CHECK(advice.subject == "lm_head.weight");
    const UnFlattenOptions tied{shapes, {{"lm_head.weight", "transformer.wte.weight"}}, {}};
    test::check_same(*un_flatten(local(name), tied), *truth(name));
    // The head is listed with a shape and tied by the user: it has no storage.
    auto both = shapes;
    both.parameters.push_back({"lm_head.weight", {97, 24}});
    CHECK_THROWS_AS(un_flatten(local(name), {both, {}, {}}), FormatError);
    test::check_same(*un_flatten(local(name), {both, tied.ties, {}}), *truth(name));
    CHECK_THROWS_AS(un_flatten(local(name), {shapes, {{"lm_head.weight", "nothing"}}, {}}), RequestError);
    shapes.ties = {{"lm_head.weight", ""}};
    CHECK_THROWS_AS(un_flatten(local(name), {shapes, {}, {}}), RequestError);
    shapes.ties = {{"lm_head.weight", "b"}, {"b", "lm_head.weight"}};
    CHECK_THROWS_AS(un_flatten(local(name), {shapes, {}, {}}), RequestError);
  }

  TEST_CASE("un_flatten: nesting stays in path and name") {
    const auto source =
        un_flatten(local("local_t241_ws2_gpt_nested"), {shapes_of("local_t241_ws2_gpt_nested"), {}, {}});
    const auto& tensor = source->tensors()[test::number_of(*source, "model.transformer.h.0.ln_1.bias")];
    CHECK(tensor.path == StatePath{"model", "transformer.h.0.ln_1.bias"});
    CHECK(source->values().size() == 9);
  }

  TEST_CASE("un_flatten: parameters that FSDP ignored stay unchanged") {
    auto source = std::make_shared<test::MemorySource>();
    source->add("_flat_param", DType::f32, {6}, test::bytes_of<float>({1, 2, 3, 4, 5, 6}));
    source->add("b", DType::f32, {2}, test::bytes_of<float>({7, 8}));
    const ParameterShapes shapes{{{"a", {2, 2}}, {"b", {2}}, {"c", {2}}}, {}, "test"};
    const auto result = un_flatten(source, {shapes, {}, {}});
    CHECK(test::values_of<float>(test::read_whole(*result, test::number_of(*result, "c"))) == std::vector<float>{5, 6});
    CHECK(test::values_of<float>(test::read_whole(*result, test::number_of(*result, "b"))) == std::vector<float>{7, 8});
  }
}
