// Converts every checkpoint that PyTorch wrote to every format and back.
#include "lib/checkpoints/programs/dcp/dcp_target.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"
#include "lib/checkpoints/programs/torch_save/torch_target.hpp"
#include "lib/checkpoints/target/value_json.hpp"
#include "tests/unit/checkpoints/target/target_test_support.hpp"

using namespace fsdp;

namespace {

std::vector<std::filesystem::path> fixtures() {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(test::fixture(""))) {
    const auto name = entry.path().filename().string();
    const bool is_refused = name.find("_refuse_") != std::string::npos || name.find("_unsupported_") != name.npos;
    if (entry.is_directory() && !is_refused) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// The plain leaves of a value, by name. Formats differ in the containers that they open and the classes that they
/// keep.
void flatten(const std::string& name, const nlohmann::json& value, std::map<std::string, nlohmann::json>& leaves) {
  if (value.is_object() && value.contains("__object__")) return flatten(name, value.at("state"), leaves);
  if (value.is_object() && value.contains("__dict__")) {  // an opened dict has string keys
    for (const auto& pair : value.at("__dict__")) flatten(name + "." + pair.at(0).dump(), pair.at(1), leaves);
    return;
  }
  const bool is_tagged = value.is_object() && value.size() == 1 && value.begin().key().starts_with("__");
  if (is_tagged || !value.is_structured() || value.empty()) {
    leaves[name] = value;
    return;
  }
  for (const auto& [key, item] : value.items()) flatten(name + "." + key, item, leaves);
}
std::map<std::string, nlohmann::json> leaves_of(const Source& source) {
  std::map<std::string, nlohmann::json> leaves;
  for (std::size_t i = 0; i < source.values().size(); ++i) {
    const auto& name = source.values()[i].name;
    flatten(name, nlohmann::json::parse(value_to_json(*source.value(i).value, name)), leaves);
  }
  return leaves;
}

bool has_complex(const Source& source) {
  return std::any_of(source.tensors().begin(), source.tensors().end(),
                     [](const auto& tensor) { return tensor.dtype == DType::c64 || tensor.dtype == DType::c128; });
}

}  // namespace

TEST_SUITE("target/round_trip") {
  TEST_CASE("every fixture keeps tensors, values and paths through .pt and through DCP of 1, 3 and 20 ranks") {
    const auto all = fixtures();
    REQUIRE(all.size() >= 60);
    for (const auto& fixture : all) {
      CAPTURE(fixture.filename().string());
      const test::TempDir directory;
      const auto source = open_source(test::input_of(fixture));
      const auto leaves = leaves_of(*source);
      TorchTarget torch("t.pt");
      test::copy_alone(*source, torch, directory / "t.pt");
      const auto from_torch = open_source(directory / "t.pt");
      test::check_same_tensors(*source, *from_torch);
      CHECK(leaves_of(*from_torch) == leaves);
      for (const int ranks : {1, 3, 20}) {
        CAPTURE(ranks);
        const auto output = directory / ("dcp" + std::to_string(ranks));
        DcpTarget dcp({ranks, {}, {}});
        test::copy_alone(ranks == 20 ? *from_torch : *source, dcp, output);
        const auto from_dcp = open_source(output);
        test::check_same_tensors(*source, *from_dcp);
        CHECK(leaves_of(*from_dcp) == leaves);
        for (const auto& tensor : from_torch->tensors()) {
          CAPTURE(tensor.name);
          CHECK(from_dcp->tensors()[test::number_of(*from_dcp, tensor.name)].path == tensor.path);
        }
      }
    }
  }

  TEST_CASE("every fixture that safetensors can hold is kept by one file and the file with its values") {
    int converted = 0;
    for (const auto& fixture : fixtures()) {
      CAPTURE(fixture.filename().string());
      const auto source = open_source(test::input_of(fixture));
      const test::TempDir directory;
      SafetensorsTarget target("m.safetensors");
      if (has_complex(*source)) {
        CHECK_THROWS_WITH_AS(target.plan(*source), doctest::Contains("tensor \"c64\""), RequestError);
        continue;
      }
      test::copy_alone(*source, target, directory / "m.safetensors");
      test::check_same_tensors(*source, *open_source(directory / "m.safetensors"));
      const auto beside = directory / "m.json";
      CHECK(std::filesystem::exists(beside) == !source->values().empty());
      const auto truth = test::truth_of(fixture);
      if (std::filesystem::exists(beside) && truth.contains("nontensor") &&
          !fixture.filename().string().starts_with("local")) {
        CHECK(nlohmann::json::parse(read_text_file(beside)) == truth.at("nontensor"));
      }
      ++converted;
    }
    CHECK(converted >= 50);
  }

  TEST_CASE("every fixture without values is kept by a Hugging Face directory of small files") {
    int converted = 0;
    for (const auto& fixture : fixtures()) {
      CAPTURE(fixture.filename().string());
      const auto source = open_source(test::input_of(fixture));
      if (has_complex(*source) || !source->values().empty()) continue;
      const test::TempDir directory;
      HfTarget target({3000, {}, {}, {}});
      test::copy_alone(*source, target, directory / "hf");
      test::check_same_tensors(*source, *open_source(directory / "hf"));
      ++converted;
    }
    CHECK(converted >= 20);
  }

  TEST_CASE("a .pt file that is converted to .pt stays the same file") {
    const test::TempDir directory;
    const auto source = open_source(test::input_of(test::fixture("pt_t211_zoo")));
    TorchTarget target("t.pt");
    test::copy_alone(*source, target, directory / "t.pt");
    std::filesystem::create_directory(directory / "again");
    test::copy_alone(*open_source(directory / "t.pt"), target, directory / "again" / "t.pt");
    CHECK(read_text_file(directory / "t.pt") == read_text_file(directory / "again" / "t.pt"));
  }
}
