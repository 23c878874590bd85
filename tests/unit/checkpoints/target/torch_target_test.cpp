#include "lib/checkpoints/programs/torch_save/torch_target.hpp"
#include "lib/checkpoints/programs/formats.hpp"

#include "lib/base/files/file.hpp"
#include "lib/checkpoints/programs/hf/safetensors_target.hpp"
#include "lib/checkpoints/target/value_json.hpp"
#include "tests/unit/checkpoints/target/target_test_support.hpp"

using namespace fsdp;

namespace {

void put_none(PickleWriter& pickle) { pickle.none(); }

std::string json_of(const std::function<void(PickleWriter&)>& write) {
  test::MemorySource source;
  source.add_value("v", {"v"}, write);
  return value_to_json(*source.value(0).value, "v");
}

}  // namespace

TEST_SUITE("target/torch_target") {
  TEST_CASE("nest: dicts by key, lists by position, in the order of the source") {
    test::MemorySource source;
    source.add("m.b.c", DType::f32, {1}, {"m", "b.c"}).add("m.a", DType::f32, {1}, {"m", "a"});
    source.add("l.1", DType::f32, {1}, {"l", 1}).add_value("l.0.x", {"l", 0, "x"}, put_none);
    const auto root = nest(source);
    const auto& top = std::get<NestedDict>(root.content);
    REQUIRE(top.items.size() == 2);
    const auto& model = std::get<NestedDict>(top.items[0].second->content);
    CHECK(model.items[0].first == "b.c");
    CHECK(std::get<NestedLeaf>(model.items[1].second->content).number == 1);
    const auto& list = std::get<NestedList>(top.items[1].second->content);
    CHECK(std::holds_alternative<NestedDict>(list.items.at(0)->content));
    CHECK(std::get<NestedLeaf>(list.items.at(1)->content).is_tensor);
  }

  TEST_CASE("nest: refuses paths that contradict each other and lists with gaps, naming them") {
    const auto refused = [](const StatePath& first, const StatePath& second, const char* what) {
      test::MemorySource source;
      source.add("first", DType::f32, {1}, first).add("second", DType::f32, {1}, second);
      CHECK_THROWS_WITH_AS(nest(source), doctest::Contains(what), RequestError);
    };
    refused({"a"}, {"a", "b"}, "\"second\"");
    refused({"a", "b"}, {"a"}, "\"second\"");
    refused({"a", "b"}, {"a", "b"}, "\"second\"");
    refused({"a", "b"}, {"a", 0}, "needs a list");
    refused({"a", 0}, {"a", "b"}, "needs a dict");
    refused({"a", 0}, {"b", -1}, "position -1");
    refused({"l", 0}, {"l", 2}, "\"l\" has nothing at position 1");
    refused({"l", 1, 1}, {"l", 0}, "\"l.1\" has nothing at position 0");
    refused(StatePath(101, "deep"), {"b"}, "more than 100");
  }

  TEST_CASE("TorchTarget: numbers storages in the order of the pickle, and aligns them") {
    test::MemorySource source;
    source.add("a.x", DType::f32, {3}, {"a", "x"}).add("b", DType::f32, {5}).add("a.y", DType::f32, {7}, {"a", "y"});
    TorchTarget target("deep/t.pt");
    const auto layout = target.plan(source);
    REQUIRE(layout.segments.size() == 3);
    CHECK(layout.segments[0].tensor == 0);
    CHECK(layout.segments[1].tensor == 2);
    CHECK(layout.segments[2].tensor == 1);
    for (const auto& segment : layout.segments) CHECK(segment.offset_bytes % 64 == 0);
    CHECK(layout.files[0].name == "t.pt");
    CHECK(layout.literals[0].bytes.find("t/data.pkl") != std::string::npos);
  }

  TEST_CASE("TorchTarget: an empty checkpoint and a single tensor can be read back") {
    const test::TempDir directory;
    TorchTarget target("t.pt");
    test::copy_alone(test::MemorySource(), target, directory / "t.pt");
    CHECK(open_source(directory / "t.pt")->tensors().empty());
  }

  TEST_CASE("value_to_json: has markers for values that JSON lacks") {
    CHECK(json_of([](auto& p) { p.real(-1.0 / 0.0); }) == "{\"__float__\": \"-inf\"}");
    CHECK(json_of([](auto& p) { p.real(0.1); }) == "0.1");
    CHECK(json_of([](auto& p) { p.real(2); }) == "2.0");
    CHECK(json_of([](auto& p) { p.big_integer("1208925819614629174706176"); }) == "1208925819614629174706176");
    CHECK(json_of([](auto& p) { p.bytes(std::string_view("\0\xff\x10", 3)); }) == "{\"__bytes__\": \"00ff10\"}");
    CHECK(json_of([](auto& p) { p.string("a\"\n\xc3\xa9"); }) == "\"a\\\"\\n\xc3\xa9\"");
    CHECK(json_of([](auto& p) { p.empty_tuple(); }) == "{\"__tuple__\": []}");
    CHECK(json_of([](auto& p) { p.global("torch", "int64"); }) == "{\"__dtype__\": \"torch.int64\"}");
    CHECK(json_of([](auto& p) { p.global("my", "Class"); }) == "{\"__global__\": \"my.Class\"}");
    CHECK(json_of([](auto& p) {
            p.empty_dict();
            p.mark();
            for (const int key : {5, 6}) {
              p.integer(key);
              p.none();
            }
            p.set_items();
          }) == "{\"__dict__\": [[5, null], [6, null]]}");
    // A dict that looks like one of the marks, and a key that is set twice.
    CHECK(json_of([](auto& p) {
            p.empty_dict();
            p.mark();
            for (const int value : {1, 2}) {
              p.string("__tuple__");
              p.integer(value);
            }
            p.set_items();
          }) == "{\"__dict__\": [[\"__tuple__\", 2]]}");
    CHECK(json_of([](auto& p) {
            p.global("argparse", "Namespace");
            p.empty_tuple();
            p.new_object();
            p.empty_dict();
            p.mark();
            p.string("lr");
            p.integer(1);
            p.set_items();
            p.build();
          }) == "{\"__object__\": \"argparse.Namespace\", \"state\": {\"lr\": 1}}");
    CHECK_THROWS_AS(json_of([](auto& p) {
                      p.integer(0);
                      p.persistent_id();
                    }),
                    RequestError);
  }

  TEST_CASE("SafetensorsTarget: carries metadata, except for what describes the shards of the source") {
    const test::TempDir directory;
    test::MemorySource source;
    source.add("a", DType::f32, {1});
    source.info().metadata = {{"format", "np"}, {"license", "mit"}, {"DCP_SHARDING_INFO", "{}"}};
    SafetensorsTarget target("m.safetensors");
    test::copy_alone(source, target, directory / "m.safetensors");
    CHECK(open_source(directory / "m.safetensors")->info().metadata ==
          std::map<std::string, std::string>{{"format", "pt"}, {"license", "mit"}});
  }

  TEST_CASE("SafetensorsTarget: values need a name that no tensor has") {
    test::MemorySource source;
    source.add("a", DType::f32, {1}).add_value("v", {"v"}, put_none);
    SafetensorsTarget target("model.json");
    CHECK_THROWS_AS(target.plan(source), RequestError);
  }
}
