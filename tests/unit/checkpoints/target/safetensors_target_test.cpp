#include "lib/checkpoints/programs/hf/safetensors_target.hpp"
#include "lib/checkpoints/programs/formats.hpp"

#include "lib/base/files/file.hpp"
#include "lib/formats/safetensors.hpp"
#include "tests/unit/checkpoints/target/target_test_support.hpp"

using namespace fsdp;

namespace {

nlohmann::json weight_map(const std::filesystem::path& directory) {
  return nlohmann::json::parse(read_text_file(directory / "model.safetensors.index.json")).at("weight_map");
}

/// A model whose output layer equals its embedding, as PyTorch saves it.
std::filesystem::path write_tied(const test::TempDir& directory, bool equal) {
  const test::Bytes embedding = test::random_bytes(7 * 4 * 4, 3), other = test::random_bytes(7 * 4 * 4, 4);
  const std::vector<ShardRecord> records{
      {"lm_head.weight", DType::f32, {7, 4}, {0, 0}, {7, 4}, equal ? embedding : other},
      {"transformer.wte.weight", DType::f32, {7, 4}, {0, 0}, {7, 4}, embedding}};
  const auto path = directory / (equal ? "equal.safetensors" : "other.safetensors");
  write_safetensors(path, records, {});
  return path;
}

}  // namespace

TEST_SUITE("target/safetensors_target") {
  TEST_CASE("HfTarget: writes files up to the given size, in the order of the source, with an index") {
    test::MemorySource source;
    source.add("z", DType::f32, {100}).add("a", DType::f32, {150}).add("m", DType::f32, {100});
    source.add("big", DType::f32, {1000}).add("tiny", DType::i64, {});
    const test::TempDir directory;
    HfTarget target({1000, {}, {}, {}});
    test::copy_alone(source, target, directory / "hf");
    const auto map = weight_map(directory / "hf");
    const auto name = [](int k) { return "model-0000" + std::to_string(k) + "-of-00004.safetensors"; };
    CHECK(map == nlohmann::json{{"z", name(1)}, {"a", name(1)}, {"m", name(2)}, {"big", name(3)}, {"tiny", name(4)}});
    const auto index = nlohmann::json::parse(read_text_file(directory / "hf" / "model.safetensors.index.json"));
    CHECK(index.at("metadata").at("total_size") == 1350 * 4 + 8);
    test::check_same_tensors(source, *open_source(directory / "hf"));

    HfTarget one({5408, {}, {}, {}});
    test::copy_alone(source, one, directory / "one");
    CHECK(test::names_in(directory / "one") == std::set<std::string>{".fsdp-export.json", "model.safetensors"});
    CHECK(SafetensorsReader(directory / "one" / "model.safetensors").metadata().at("format") == "pt");
  }

  TEST_CASE("HfTarget: carries configuration and tokenizer; given files take precedence, then the first directory") {
    const test::TempDir directory, first, second;
    test::write_file(first / "config.json", "{\"a\": 1}");
    test::write_file(first / "tokenizer.json", "\xff\0raw");
    test::write_file(second / "config.json", "{\"a\": 2}");
    test::write_file(second / "merges.txt", "m");
    test::write_file(second / "optimizer.pt", "not carried");
    test::write_file(second / "generation_config.json", "{}");
    test::MemorySource source;
    source.add("a", DType::f32, {1});
    HfTarget target({1000, {first.path(), second.path()}, {{"generation_config.json", "{\"given\": true}"}}, {}});
    test::copy_alone(source, target, directory / "hf");
    const auto text = [&](const char* name) { return read_text_file(directory / "hf" / name); };
    CHECK(text("config.json") == "{\"a\": 1}");
    CHECK(text("tokenizer.json") == read_text_file(first / "tokenizer.json"));
    CHECK(text("merges.txt") == "m");
    CHECK(text("generation_config.json") == "{\"given\": true}");
    CHECK(test::names_in(directory / "hf").size() == 6);
  }

  TEST_CASE("HfTarget: leaves out the output layer when config.json ties it and it equals the embedding") {
    const test::TempDir directory;
    const auto source = open_source(write_tied(directory, true)), other = open_source(write_tied(directory, false));
    const auto names = [&](const Source& from, const std::string& config) {
      HfTarget target({1 << 20, {}, {{"config.json", config}}, {}});
      CopyOptions options;
      options.overwrite = true;
      test::copy_alone(from, target, directory / "hf", options);
      std::set<std::string> found;
      const SafetensorsReader written(directory / "hf" / "model.safetensors");
      for (const auto& [name, entry] : written.tensors()) found.insert(name);
      return found;
    };
    const std::set<std::string> one{"transformer.wte.weight"}, both{"lm_head.weight", "transformer.wte.weight"};
    CHECK(names(*source, "{\"tie_word_embeddings\": true}") == one);
    CHECK(names(*source, "{\"model_type\": \"gpt2\"}") == one);  // tied by default
    CHECK(names(*source, "{\"model_type\": \"gpt2\", \"tie_word_embeddings\": false}") == both);
    CHECK(names(*source, "{\"model_type\": \"llama\"}") == both);
    CHECK(names(*other, "{\"model_type\": \"llama\"}") == both);
    CHECK_THROWS_WITH_AS(names(*other, "{\"tie_word_embeddings\": true}"), doctest::Contains("differs from"),
                         RequestError);
    CHECK_THROWS_AS(names(*source, "[]"), FormatError);
    CHECK_THROWS_AS(names(*source, "{"), FormatError);
  }

  TEST_CASE("HfTarget: refuses values and tensors that the format cannot hold") {
    HfTarget target({1000, {}, {}, {}});
    test::MemorySource with_value;
    with_value.add("a", DType::f32, {1}).add_value("step", {"step"}, [](PickleWriter& pickle) { pickle.integer(1); });
    CHECK_THROWS_WITH_AS(target.plan(with_value), doctest::Contains("\"step\""), RequestError);
    test::MemorySource with_complex;
    with_complex.add("c", DType::c64, {1});
    CHECK_THROWS_WITH_AS(target.plan(with_complex), doctest::Contains("\"c\""), RequestError);
    CHECK_THROWS_AS(target.plan(test::MemorySource()), RequestError);
  }
}
