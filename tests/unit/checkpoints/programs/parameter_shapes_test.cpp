#include <doctest/doctest.h>

#include "lib/checkpoints/programs/fsdp1/un_flatten.hpp"
#include "tests/unit/checkpoints/programs/convert_test_support.hpp"

using namespace fsdp;

namespace {

using Ties = std::vector<std::pair<std::string, std::string>>;

ParameterShapes read(const std::string& text) {
  const test::TempDir directory;
  test::write_file(directory / "shapes.json", text);
  return read_parameter_shapes(directory / "shapes.json");
}

}  // namespace

TEST_SUITE("convert/parameter_shapes") {
  TEST_CASE("read_parameter_shapes: order, scalars, empty shapes, ties") {
    const auto shapes = read(R"({"parameters": [{"fqn": "z", "shape": []}, {"fqn": "m.wte.weight", "shape": [3, 2]},
                                                {"fqn": "a", "shape": [0, 7]}],
                                 "all_names_including_tied": ["z", "m.wte.weight", "a", "lm_head.weight", "other"]})");
    REQUIRE(shapes.parameters.size() == 3);
    CHECK(shapes.parameters[0].name == "z");
    CHECK(shapes.parameters[0].shape.empty());
    CHECK(shapes.parameters[1].shape == Shape{3, 2});
    CHECK(shapes.parameters[2].shape == Shape{0, 7});
    // The user must say which parameter "other" is tied to.
    CHECK(shapes.ties == Ties{{"lm_head.weight", "m.wte.weight"}, {"other", ""}});
  }

  TEST_CASE("read_parameter_shapes: makes no guess between two embeddings") {
    const auto shapes =
        read(R"({"parameters": [{"fqn": "a.wte.weight", "shape": [3]}, {"fqn": "b.wte.weight", "shape": [3]}],
                                 "all_names_including_tied": ["a.wte.weight", "lm_head.weight"]})");
    CHECK(shapes.ties == Ties{{"lm_head.weight", ""}});
  }

  TEST_CASE("read_parameter_shapes: refuses other JSON") {
    for (const auto* text :
         {"", "[]", "{}", R"({"parameters": {}})", R"({"parameters": [1]})", R"({"parameters": [{"fqn": "a"}]})",
          R"({"parameters": [{"fqn": 1, "shape": []}]})", R"({"parameters": [{"fqn": "a", "shape": 3}]})",
          R"({"parameters": [{"fqn": "a", "shape": [-1]}]})", R"({"parameters": [{"fqn": "a", "shape": [1.5]}]})",
          R"({"parameters": [{"fqn": "a", "shape": [4611686018427387904, 4]}]})",
          R"({"parameters": [{"fqn": "a", "shape": [18446744073709551615]}]})",
          R"({"parameters": [{"fqn": "a", "shape": [1]}, {"fqn": "a", "shape": [1]}]})",
          R"({"parameters": [], "all_names_including_tied": 3})",
          R"({"parameters": [], "all_names_including_tied": [3]})"}) {
      CAPTURE(text);
      CHECK_THROWS_AS(read(text), FormatError);
    }
    CHECK_THROWS_AS(read_parameter_shapes("/nowhere/shapes.json"), IoError);
  }

  TEST_CASE("parameter_shapes_of_config: reads a directory, a file, run.json, and GPT-2") {
    const test::TempDir directory;
    const std::string mingpt = R"({"n_layer": 1, "n_head": 1, "n_embd": 2, "vocab_size": 5, "block_size": 3})";
    CHECK_THROWS_AS(parameter_shapes_of_config(directory.path()), MissingInput);
    test::write_file(directory / "run.json", R"({"format": 1, "model": )" + mingpt + "}");
    auto shapes = parameter_shapes_of_config(directory.path());
    REQUIRE(shapes.parameters.size() == 16);
    CHECK(shapes.parameters[4].name == "transformer.h.0.attn.c_attn.weight");
    CHECK(shapes.parameters[4].shape == Shape{6, 2});
    CHECK(shapes.ties == Ties{{"lm_head.weight", "transformer.wte.weight"}});
    // GPT-2 of transformers has the same names. Its matrices are transposed, its embeddings are not.
    test::write_file(directory / "config.json", R"({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 2,
                                                    "vocab_size": 5, "n_positions": 3})");
    shapes = parameter_shapes_of_config(directory / "config.json");
    REQUIRE(shapes.parameters.size() == 16);
    CHECK(shapes.parameters[0].shape == Shape{5, 2});
    CHECK(shapes.parameters[4].shape == Shape{2, 6});
    test::write_file(directory / "config.json", R"({"model_type": "bert"})");
    CHECK_THROWS_AS(parameter_shapes_of_config(directory.path()), FormatError);
  }

  TEST_CASE("parameter_shapes_of_reference: the order of a .pt, ties by storage and by content") {
    const auto own = read_parameter_shapes(test::fixture("local_t201_ws2_gpt") / "param_shapes.json");
    const auto same = parameter_shapes_of_reference(test::fixture("full_t113_ws2_gpt") / "ckpt.pt");
    REQUIRE(same.parameters.size() == own.parameters.size());
    for (std::size_t i = 0; i < own.parameters.size(); ++i) CHECK(same.parameters[i].name == own.parameters[i].name);
    CHECK(same.ties == own.ties);
    CHECK(parameter_shapes_of_reference(test::fixture("pt_t211_gpt_full") / "ckpt.pt").ties == own.ties);
    CHECK(parameter_shapes_of_reference(test::fixture("hf_gpt_tied_dropped") / "model.safetensors").ties.empty());
  }

  TEST_CASE("parameter_shapes_of_reference: refuses formats without an order, and flat parameters") {
    CHECK_THROWS_AS(parameter_shapes_of_reference(test::fixture("st_zoo") / "model.safetensors"), RequestError);
    CHECK_THROWS_AS(parameter_shapes_of_reference(test::fixture("local_t201_ws2_gpt") / "ckpt"), FormatError);
  }
}
