// Compares every checkpoint that PyTorch wrote with its expected content.
#include "lib/base/types/error.hpp"
#include "lib/checkpoints/programs/formats.hpp"
#include "lib/formats/crc32.hpp"
#include "tests/unit/checkpoints/programs/source_test_support.hpp"

using namespace fsdp;

namespace {

std::vector<std::filesystem::path> fixtures(bool (*wanted)(const std::string&)) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(test::fixture(""))) {
    if (entry.is_directory() && wanted(entry.path().filename().string())) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool is_refused(const std::string& name) {
  return name.find("_refuse_") != std::string::npos || name.find("_unsupported_") != std::string::npos;
}
bool is_local(const std::string& name) { return name.starts_with("local_") && name != "local_t211_ws1_gpt"; }

/// The expected tensor. safetensors has no complex numbers, so the file has pairs of real ones.
struct Truth {
  std::string name;
  DType dtype;
  Shape shape;
  test::Bytes bytes;
};
Truth truth_of_tensor(const SafetensorsReader& expected, const std::string& key) {
  const auto& entry = expected.tensors().at(key);
  Truth truth{key, entry.dtype, entry.shape, test::Bytes(entry.end - entry.begin)};
  expected.read_rows(key, 0, entry.shape.empty() ? 1 : entry.shape[0], truth.bytes);
  constexpr std::string_view suffix = "@view_as_real";
  if (key.ends_with(suffix)) {
    truth.name.resize(key.size() - suffix.size());
    truth.dtype = entry.dtype == DType::f64 ? DType::c128 : DType::c64;
    truth.shape.pop_back();
  }
  return truth;
}

void compare_with_truth(const std::filesystem::path& fixture) {
  const auto source = open_source(test::input_of(fixture));
  const SafetensorsReader expected(fixture / "expected.safetensors");
  CHECK(source->tensors().size() == expected.tensors().size());
  std::vector<ReadSum> sums;
  for (const auto& [key, entry] : expected.tensors()) {
    CAPTURE(key);
    const Truth truth = truth_of_tensor(expected, key);
    const std::size_t number = test::number_of(*source, truth.name);
    const auto& tensor = source->tensors()[number];
    CHECK(tensor.dtype == truth.dtype);
    CHECK(tensor.shape == truth.shape);
    CHECK(tensor.num_shards >= 1);
    CHECK(test::read_whole(*source, number, &sums) == truth.bytes);
    for (const std::uint64_t piece : {std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{100}}) {
      if (truth.bytes.size() / piece > 20000) continue;
      CHECK(test::read_pieces(*source, number, piece, piece == 7 ? &sums : nullptr) == truth.bytes);
    }
    test::Bytes again(truth.bytes.size());
    std::vector<ReadSum> own;
    const auto crc = source->read(number, 0, static_cast<std::uint64_t>(num_elements(tensor.shape)), again, &own);
    if (crc) CHECK(*crc == crc32(0, truth.bytes));
  }
  CHECK_NOTHROW(source->verify_sums(sums));
}

}  // namespace

TEST_SUITE("source/fixtures") {
  TEST_CASE("open_source: reads every tensor of every fixture, whole and in pieces") {
    const auto all = fixtures([](const std::string& name) { return !is_local(name) && !is_refused(name); });
    REQUIRE(all.size() >= 50);
    for (const auto& fixture : all) {
      CAPTURE(fixture.filename().string());
      compare_with_truth(fixture);
    }
  }

  TEST_CASE("open_source: values have the expected names, and every value is plain") {
    int compared = 0;
    for (const auto& fixture :
         fixtures([](const std::string& name) { return !is_refused(name) && name != "README.md"; })) {
      CAPTURE(fixture.filename().string());
      const auto source = open_source(test::input_of(fixture));
      std::set<std::string> names, expected;
      for (const auto& value : source->values()) names.insert(value.name);
      const auto truth = test::truth_of(fixture);
      if (truth.contains("nontensor")) {
        for (const auto& [key, value] : truth["nontensor"].items()) expected.insert(key);
      }
      CHECK(names == expected);
      for (std::size_t i = 0; i < source->values().size(); ++i) {
        const LoadedValue loaded = source->value(i);
        REQUIRE(loaded.document != nullptr);
        const auto& wanted = truth["nontensor"][source->values()[i].name];
        if (wanted.is_string())
          CHECK((loaded.value->string() && loaded.value->string()->text == wanted.get<std::string>()));
        if (wanted.is_boolean()) CHECK((loaded.value->boolean() && *loaded.value->boolean() == wanted.get<bool>()));
        if (wanted.is_number_float() && loaded.value->real()) CHECK(*loaded.value->real() == wanted.get<double>());
        if (wanted.is_null()) CHECK(loaded.value->is_none());
        ++compared;
      }
    }
    CHECK(compared >= 100);
  }

  TEST_CASE("open_source: local states have their flat parameters") {
    for (const auto& fixture : fixtures(is_local)) {
      CAPTURE(fixture.filename().string());
      const auto source = open_source(test::input_of(fixture));
      CHECK(is_local_state(*source));
      CHECK(source->info().format == "FSDP1 local state");
      CHECK(source->info().world_size >= test::truth_of(fixture)["world_size"].get<int>() - 2);
      for (std::size_t i = 0; i < source->tensors().size(); ++i) CHECK_NOTHROW(test::read_whole(*source, i));
    }
    CHECK_FALSE(is_local_state(*open_source(test::input_of(test::fixture("local_t211_ws1_gpt")))));
  }

  TEST_CASE("open_source: refuses unsafe and unsupported fixtures") {
    const auto all = fixtures(is_refused);
    CHECK(all.size() >= 2);
    for (const auto& fixture : all) {
      CAPTURE(fixture.filename().string());
      CHECK_THROWS_AS(open_source(test::input_of(fixture)), FormatError);
    }
  }

  TEST_CASE("SourceInfo: format, producer and world size") {
    const auto info = [](const char* name) { return open_source(test::input_of(test::fixture(name)))->info(); };
    CHECK(info("dcp_t211_ws2_app").format == "DCP");
    CHECK(info("dcp_t211_ws2_app").world_size == 2);
    CHECK(info("dcp_t211_ws2_app").producer.find("2.4 or later") != std::string::npos);
    CHECK(info("sharded_t113_ws2_gpt").producer == "PyTorch 1.13");
    CHECK(info("dcp_t211_ws2_nocollectives").world_size == 2);
    CHECK(info("pt_t211_zoo").format == "torch zip");
    CHECK(info("pt_t113_gpt_full").producer == "PyTorch 1.6 to 2.0");
    CHECK(info("pt_t241_zoo").producer == "PyTorch 2.1 or later");
    CHECK(info("pt_t211_zoo_legacy").format == "torch legacy");
    CHECK(info("hf_llama_sharded_bf16").files.size() == 4);
    CHECK(info("dcp_t211_ws2_hf_sharded").world_size == 2);
  }
}
